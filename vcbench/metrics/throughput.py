"""Tokens per second of prefill and decode apart, and where a round's time goes; wall clock of batches alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vcbench.metrics.interval import Estimate, ratio
from vcbench.records.schema import BatchLine, PromptLine, RequestLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """A cell's speed. `tokens`: decoded tokens of requests that ended well; seconds are those of the same batches."""

    decode_tokens_per_s: Estimate | None
    tokens: int
    batches: int
    decode_s: float
    compress_s: float
    draft_s_per_round: float | None
    verify_s_per_round: float | None
    other_s_per_round: float | None
    peak_rss_bytes: int | None


def throughput(batches: Sequence[BatchLine], requests: Mapping[str, RequestLine], *, seed: int = 0) -> Throughput:
    """Total tokens over total decode seconds of the batches.

    A failed request's tokens do not count, while the time that it shared with others does; a batch in which all failed,
    or without a time, is left out. `requests`: the cell's answers by request.
    """
    failed = {name for name, line in requests.items() if line.error is not None}
    kept = [
        batch for batch in batches if batch.timing.get("decode_s", 0.0) > 0 and not failed.issuperset(batch.requests)
    ]
    tokens = [
        batch.tokens - sum(_decoded(requests[name]) for name in batch.requests if name in failed) for batch in kept
    ]
    # Every round is a verification of the whole batch, so its longest request counts the batch's rounds.
    rounds = sum(
        max((len(requests[name].committed) for name in batch.requests if name in requests), default=0) for batch in kept
    )
    peaks = [batch.timing["peak_rss_bytes"] for batch in batches if "peak_rss_bytes" in batch.timing]
    return Throughput(
        decode_tokens_per_s=ratio(tokens, [batch.timing["decode_s"] for batch in kept], seed=seed),
        tokens=sum(tokens),
        batches=len(kept),
        decode_s=_seconds(kept, "decode_s"),
        compress_s=_seconds(kept, "compress_s"),
        draft_s_per_round=_seconds(kept, "draft_s") / rounds if rounds else None,
        verify_s_per_round=_seconds(kept, "verify_s") / rounds if rounds else None,
        other_s_per_round=_seconds(kept, "other_s") / rounds if rounds else None,
        peak_rss_bytes=int(max(peaks)) if peaks else None,
    )


def prefill_tokens_per_s(prompts: Collection[PromptLine], *, seed: int = 0) -> Estimate | None:
    """Prompt tokens over prefill seconds; prompts that were never prefilled are left out."""
    kept = [prompt for prompt in prompts if prompt.timing.get("prefill_s", 0.0) > 0]
    return ratio([len(p.prompt_ids) for p in kept], [p.timing["prefill_s"] for p in kept], seed=seed)


def batch_problem(batch: BatchLine, requests: Mapping[str, RequestLine]) -> str:
    """Where a batch's token count contradicts its requests' outputs; empty if it does not, or one is not recorded."""
    if any(name not in requests for name in batch.requests):
        return ""
    decoded = sum(_decoded(requests[name]) for name in batch.requests)
    if decoded == batch.tokens:
        return ""
    return f"batch of {', '.join(batch.requests)}: {batch.tokens} tokens, but {decoded} decoded in the outputs"


def _decoded(line: RequestLine) -> int:
    """Output tokens less the first, which prefill gives."""
    return max(0, len(line.token_ids) - 1)


def _seconds(batches: Sequence[BatchLine], name: str) -> float:
    return sum(batch.timing.get(name, 0.0) for batch in batches)
