"""The lines of `requests.jsonl`: one dataclass per kind, with a schema version. `docs/records.md` describes them.

A line's fields other than `timing` are the same, byte for byte, whenever the same cell is run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 3
TOP_TOKENS = 5
"""How many best tokens `top5_overlap` compares."""
READABLE = (1, 2, 3)
"""Schema 1 had the closing stop token in `text`, and only `kl` and `top1_agree` in divergence lines. What schema 3 adds
is None, or no key of `timing`, in lines of before, which means unknown."""
CHECKED_SINCE = 3
"""From this schema on each line ends with a checksum of its own; provenance and manifest vouch for the other files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """A prompt, once per run: what was asked, before any cell answers it."""

    kind: Literal["prompt"] = "prompt"
    schema: int = SCHEMA_VERSION
    task: str
    request: str
    prompt_ids: list[int]
    prompt_sha256: str
    document_sha256: str
    target: Any = None
    target_sha256: str = ""
    """Empty in records of an earlier vcbench."""
    meta: dict[str, Any] = field(default_factory=dict)
    tail: str = ""
    """Text of the prompt's last tokens, for a reader's eyes; derived, escaped if need be."""
    timing: dict[str, float] = field(default_factory=dict)
    """prefill_s: seconds of this prompt's prefill with all that it gathered for all cells; 0 until it was prefilled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """One request of one cell, written as it ends.

    Token ids are the truth; `text` is derived, without a closing stop token, escaped if need be.
    """

    kind: Literal["request"] = "request"
    schema: int = SCHEMA_VERSION
    cell: str
    task: str
    request: str
    prompt_sha256: str
    token_ids: list[int]
    text: str
    finish_reason: str
    thinking_tokens: int | None = None
    """How many of the output's tokens are thoughts and their tags, which `text` holds too."""
    error: str | None = None
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    """Per round. The first token comes from prefill, so `1 + sum(committed) == len(token_ids)`."""
    kv_start: dict[str, Any] | None = None
    kv_end: dict[str, Any] | None = None
    levels: list[dict[str, Any]] = field(default_factory=list)
    """What each level did, the lowest first and the full cache last: name; drafted and accepted, as the level above
    judged each of its drafts; passes of the model over its cache; tokens that the cache holds at the end; cache_class.
    The drafts of the level below the full cache are those of `drafted`. From schema 3 on."""
    cache_classes: dict[str, int] = field(default_factory=dict)
    """Layers per class of the cache that decodes or, in a `vericache` cell, drafts."""
    logits_sha256: str = ""
    """Over the float32 logits of all output tokens; empty where they were not hashed."""
    timing: dict[str, float] = field(default_factory=dict)
    """prefill_s: what this cell would have needed by itself. compress_s, offload_s: making the draft cache, and moving
    the full one. ttft_s: all of these up to the first token. decode_s: from the batch's first step until this request
    ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLine:
    """How a conversation goes on after a cell's answer, in tasks whose next prompt depends on the last answer."""

    kind: Literal["turn"] = "turn"
    schema: int = SCHEMA_VERSION
    cell: str
    task: str
    request: str
    follow_up: str | None
    """The request that this cell is asked next; None where the conversation ends."""
    not_asked: str | None = None
    """Why the request that would have been next is not asked, such as a prompt over the model's context."""
    timing: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """Wall clock of one batch of one cell, after its requests' lines; throughput is computed from these alone."""

    kind: Literal["batch"] = "batch"
    schema: int = SCHEMA_VERSION
    cell: str
    task: str
    requests: list[str]
    tokens: int
    """Tokens that decoding committed: each request's output less its first token, which prefill gives."""
    refilled: bool = False
    """Whether these came in one by one as others ended (`engine.refill`) in place of all together."""
    timing: dict[str, float] = field(default_factory=dict)
    """compress_s, offload_s, decode_s, draft_s, verify_s, other_s, steps, row_steps (requests advanced, over all steps:
    row_steps / steps were decoded together), peak_rss_bytes; of the machine meanwhile wall_s, cpus, other_cpu_s
    (processor seconds of other processes), load_1m."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceLine:
    """Full KV's next-token distribution p against the method's q along full KV's output, over the full vocabulary.

    One entry for each output token but the first, which comes from the prefill that both share.
    """

    kind: Literal["divergence"] = "divergence"
    schema: int = SCHEMA_VERSION
    cell: str
    task: str
    request: str
    kl: Sequence[float | None]
    """KL(p || q) in nats; None where it is not finite or was not measured."""
    top1_agree: list[bool]
    top5_overlap: list[int] = field(default_factory=list)
    """How many tokens are among the five best of both."""
    logprob_full: Sequence[float | None] = field(default_factory=list)
    logprob_method: Sequence[float | None] = field(default_factory=list)
    """log p and log q of full KV's token, in nats; empty where equality of all logits made them needless."""
    basis: str = "teacher-forced"
    """Or, of VeriCache, `same logits` (by their hash: every difference is exactly 0) or `verify logits`."""
    timing: dict[str, float] = field(default_factory=dict)


Line = PromptLine | RequestLine | TurnLine | BatchLine | DivergenceLine
