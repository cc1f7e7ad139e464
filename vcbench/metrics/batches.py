"""A cell's batches as timed, and those of full KV that decoded the same requests: what every speed rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import BatchLine, RequestLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One batch. Failed requests count in no token, but the time that they took with the others stays.

    tokens: decoded ones; output_tokens: with each output's first, which prefill gives. before_s: prefill, compression
    and moving of all its requests, one after the other as they run; None where a part was not recorded.
    """

    requests: frozenset[str]
    tokens: int
    output_tokens: int
    decode_s: float
    before_s: float | None


def timed_batches(run: Run, cell: CellInfo, task: str) -> dict[frozenset[str], Timed]:
    """The cell's batches by the requests in them, whatever the order in which these ended.

    Left out: a batch without a time, and one in which all failed or nothing was decoded.
    """
    requests = {line.request: line for line in run.requests_of(cell, task)}
    found = {}
    for batch in run.batches:
        if (batch.cell, batch.task) == (cell.id, task) and (timed := timed_batch(batch, requests)) is not None:
            found[timed.requests] = timed
    return found


def timed_batch(batch: BatchLine, requests: Mapping[str, RequestLine]) -> Timed | None:
    """A batch's tokens and seconds; None where it says nothing of speed."""
    decode_s = batch.timing.get("decode_s", 0.0)
    failed = [line for name in batch.requests if (line := requests.get(name)) is not None and line.error is not None]
    tokens = batch.tokens - sum(map(decoded, failed))
    if decode_s <= 0 or len(failed) == len(batch.requests):
        return None
    return Timed(
        requests=frozenset(batch.requests),
        tokens=tokens,
        output_tokens=tokens + len(batch.requests) - len(failed),
        decode_s=decode_s,
        before_s=_before_s(batch, requests),
    )


def paired_batches(run: Run, cell: CellInfo, task: str) -> list[tuple[Timed, Timed]]:
    """The cell's batches, each with full KV's of the same requests; those without such a partner are left out."""
    baseline = run.baseline(task)
    if baseline is None:
        return []
    full = timed_batches(run, baseline, task)
    return [(ours, full[key]) for key, ours in timed_batches(run, cell, task).items() if key in full]


def decoded(line: RequestLine) -> int:
    """Output tokens less the first, which prefill gives."""
    return max(0, len(line.token_ids) - 1)


def _before_s(batch: BatchLine, requests: Mapping[str, RequestLine]) -> float | None:
    prefills = [line.timing.get("prefill_s") for name in batch.requests if (line := requests.get(name)) is not None]
    parts = [*prefills, batch.timing.get("compress_s"), batch.timing.get("offload_s", 0.0)]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(batch.requests) + 2 else None
