"""What `--fail-on` and `--baseline` can look at: per-request samples of a cell, each a numerator and a denominator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vcbench.lossless.result import TIES, CellResult, Verdict
from vcbench.metrics.acceptance import request_problem
from vcbench.metrics.text import first_divergence
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import BatchLine, RequestLine

Sample = tuple[float, float]
Samples = Mapping[str, Sample]
"""By request, or by the requests of a batch."""

COUNTS: dict[str, tuple[Verdict, ...]] = {
    "violations": (Verdict.VIOLATION,),
    "ties": TIES,
    "stop_mismatches": (Verdict.STOP_MISMATCH,),
    "missing": (Verdict.MISSING,),
}
"""Requests by verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A ratio of sums over a cell's samples. `timed`: depends on the machine."""

    doc: str
    higher_is_better: bool
    samples: Callable[[Run | None, CellInfo, str], Samples]
    timed: bool = False


def count_of(metric: str, cell: CellResult) -> int:
    """Requests of a cell with one of the metric's verdicts."""
    return sum(cell.counts[verdict] for verdict in COUNTS[metric])


def _acceptance(run: Run | None, cell: CellInfo, task: str) -> Samples:
    if cell.arm != "vericache":
        return {}
    lines = _answered(run, cell, task)
    return {key: (float(sum(line.committed)), float(len(line.committed))) for key, line in lines.items()}


def _speedup(run: Run | None, cell: CellInfo, task: str) -> Samples:
    """Seconds a token of full KV over seconds a token of the cell, batch by batch."""
    baseline = run.baseline(task) if run is not None else None
    if run is None or baseline is None or cell.arm == "full":
        return {}
    full = _batches(run, baseline, task)
    return {
        key: (full[key].timing["decode_s"] * batch.tokens / full[key].tokens, batch.timing["decode_s"])
        for key, batch in _batches(run, cell, task).items()
        if cell.arm == "vericache" and key in full
    }


def _tokens_per_s(run: Run | None, cell: CellInfo, task: str) -> Samples:
    batches = _batches(run, cell, task) if run is not None and cell.arm == "vericache" else {}
    return {key: (float(batch.tokens), batch.timing["decode_s"]) for key, batch in batches.items()}


def _kl(run: Run | None, cell: CellInfo, task: str) -> Samples:
    found = {}
    for (line_cell, line_task, request), line in (run.divergences if run is not None else {}).items():
        known = [value for value in line.kl if value is not None]
        if (line_cell, line_task) == (cell.id, task) and known:
            found[request] = (sum(known), float(len(known)))
    return found


def _kl_end(run: Run | None, cell: CellInfo, task: str) -> Samples:
    return {key: (total, 1.0) for key, (total, _) in _kl(run, cell, task).items()}


def _exact(run: Run | None, cell: CellInfo, task: str) -> Samples:
    baseline = run.baseline(task) if run is not None else None
    if run is None or baseline is None or cell.arm == "full":
        return {}
    full = _answered(run, baseline, task)
    return {
        key: (float(first_divergence(full[key].token_ids, line.token_ids) is None), 1.0)
        for key, line in _answered(run, cell, task).items()
        if key in full
    }


def _kv_factor(run: Run | None, cell: CellInfo, task: str) -> Samples:
    found = {}
    for key, line in _answered(run, cell, task).items() if cell.arm != "full" else ():
        kv = line.kv_end or {}
        if isinstance(kv.get("full"), int) and isinstance(kv.get("stored"), int):
            found[key] = (float(kv["full"]), float(kv["stored"]))
    return found


def _answered(run: Run | None, cell: CellInfo, task: str) -> dict[str, RequestLine]:
    lines = run.requests_of(cell, task) if run is not None else []
    return {line.request: line for line in lines if not request_problem(line, cell)}


def _batches(run: Run, cell: CellInfo, task: str) -> dict[str, BatchLine]:
    """Batches of the cell that took time and decoded tokens, by their requests."""
    return {
        ", ".join(batch.requests): batch
        for batch in run.batches
        if (batch.cell, batch.task) == (cell.id, task) and batch.tokens > 0 and batch.timing.get("decode_s", 0.0) > 0
    }


MEASURES: dict[str, Measure] = {
    "acceptance": Measure(doc="tokens committed per round", higher_is_better=True, samples=_acceptance),
    "speedup": Measure(
        doc="decode tokens/s over full KV's of the same run", higher_is_better=True, samples=_speedup, timed=True
    ),
    "tokens_per_s": Measure(doc="decode tokens/s", higher_is_better=True, samples=_tokens_per_s, timed=True),
    "kl": Measure(doc="KL(full || lossy) per step in nats", higher_is_better=False, samples=_kl),
    "kl_end": Measure(doc="KL(full || lossy) summed over an output, in nats", higher_is_better=False, samples=_kl_end),
    "exact": Measure(doc="share of outputs equal to full KV's", higher_is_better=True, samples=_exact),
    "kv_factor": Measure(
        doc="bytes of a full cache over bytes of the draft cache", higher_is_better=True, samples=_kv_factor
    ),
}
