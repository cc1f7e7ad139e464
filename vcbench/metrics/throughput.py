"""Where a cell's time goes: decoded tokens, seconds, and a round's parts; wall clock of batches alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vcbench.metrics.batches import decoded, timed_batch
from vcbench.records.schema import BatchLine, RequestLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """`tokens`: decoded tokens of requests that ended well; seconds are those of the same batches."""

    tokens: int
    batches: int
    decode_s: float
    compress_s: float
    draft_s_per_round: float | None
    verify_s_per_round: float | None
    other_s_per_round: float | None
    peak_rss_bytes: int | None


def throughput(batches: Sequence[BatchLine], requests: Mapping[str, RequestLine]) -> Throughput:
    """What the batches that say something of speed took (`timed_batch`). `requests`: the cell's answers by request."""
    found = [(batch, timed_batch(batch, requests)) for batch in batches]
    kept = [(batch, timed) for batch, timed in found if timed is not None]
    lines = [batch for batch, _ in kept]
    rounds = sum(_rounds(batch, requests) for batch in lines)
    peaks = [batch.timing["peak_rss_bytes"] for batch in batches if "peak_rss_bytes" in batch.timing]
    return Throughput(
        tokens=sum(timed.tokens for _, timed in kept),
        batches=len(kept),
        decode_s=_seconds(lines, "decode_s"),
        compress_s=_seconds(lines, "compress_s"),
        draft_s_per_round=_seconds(lines, "draft_s") / rounds if rounds else None,
        verify_s_per_round=_seconds(lines, "verify_s") / rounds if rounds else None,
        other_s_per_round=_seconds(lines, "other_s") / rounds if rounds else None,
        peak_rss_bytes=int(max(peaks)) if peaks else None,
    )


def _rounds(batch: BatchLine, requests: Mapping[str, RequestLine]) -> int:
    """Passes of a batch that drafts: its steps where requests came and went, else the rounds of its longest request."""
    counts = [len(requests[name].committed) for name in batch.requests if name in requests]
    longest = max(counts, default=0)
    return int(batch.timing.get("steps", longest)) if batch.refilled and longest else longest


def batch_problem(batch: BatchLine, requests: Mapping[str, RequestLine]) -> str:
    """Where a batch's token count contradicts its requests' outputs; empty if it does not, or one is not recorded."""
    if any(name not in requests for name in batch.requests):
        return ""
    total = sum(decoded(requests[name]) for name in batch.requests)
    if total == batch.tokens:
        return ""
    return f"batch of {', '.join(batch.requests)}: {batch.tokens} tokens, but {total} decoded in the outputs"


def _seconds(batches: Sequence[BatchLine], name: str) -> float:
    return sum(batch.timing.get(name, 0.0) for batch in batches)
