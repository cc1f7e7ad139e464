"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vcbench.config.sampling import Sampling

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued, greedily unless `sampling` says otherwise.

    `stop_ids` end the output and are kept as its last token; `stop_strings` end it with the token that completes one.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One draft-verify round of one request: `committed` is `accepted` + 1 unless a stop or the cap cut it."""

    drafted: int
    accepted: int
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """One level's part in one request. rounds: its drafts as the level above judged them.

    passes: how often the model ran over the level's cache. tokens: those that the cache has committed. cache_class: of
    that cache. The last two are None for a level without one.
    """

    name: str
    rounds: Sequence[Round] = ()
    passes: int = 0
    tokens: int | None = None
    cache_class: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBytes:
    """Bytes of one request's caches, as held: from the tensors themselves.

    codes: the compressed codes or kept pairs alone. stored: everything that the draft cache holds, `parts` by category.
    full: the full cache for the same tokens. resident: draft cache, full cache and scratch together, in memory.
    full_copy: what a full cache held beside the draft cache takes, by tier: `memory`, `disk`.
    reread: bytes read back from a tier since the cache was made; what stayed in its buffers does not count.
    """

    codes: int
    stored: int
    full: int
    resident: int
    parts: dict[str, int] = field(default_factory=dict)
    full_copy: dict[str, int] = field(default_factory=dict)
    reread: int = 0


@dataclass(slots=True, kw_only=True)
class Generation:
    """The result of one request in one cell. Times are seconds of wall clock and never enter a cell id.

    levels: what each level did, the lowest first and the full cache last; `rounds` are those that were committed.
    cache_classes: layers by class of the cache that was decoded from, of several drafting ones the uppermost.
    logits_sha256: over the float32 logits of all committed tokens, so that two arms can be compared bit for bit without
    storing them. prefill_s: what the cell would have needed by itself to prefill the prompt; None where nobody measured
    it. compress_s, offload_s: making this request's draft caches, and moving its full one to another tier.
    first_s, decode_s: decoding time from its admission to its first token, and to its end.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason
    rounds: list[Round] = field(default_factory=list)
    levels: list[Tally] = field(default_factory=list)
    kv_start: KVBytes | None = None
    kv_end: KVBytes | None = None
    cache_classes: dict[str, int] = field(default_factory=dict)
    logits_sha256: str = ""
    error: str | None = None
    prefill_s: float | None = None
    compress_s: float = 0.0
    offload_s: float = 0.0
    first_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class BatchTiming:
    """Wall-clock seconds of one batch in one cell; `other_s` is what is neither drafting nor verifying.

    compress_s: what compressing the batch takes; compressed_before: for how many of its caches it had been done for
    another cell, when it was measured. offload_s: moving full caches to another tier before the first step. row_steps:
    requests advanced, over all steps. tokens: those that steps committed, so without each request's first, which its
    prefill gives.
    """

    compress_s: float = 0.0
    compressed_before: int = 0
    offload_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    steps: int = 0
    row_steps: int = 0
    tokens: int = 0

    @property
    def other_s(self) -> float:
        return max(0.0, self.decode_s - self.draft_s - self.verify_s)
