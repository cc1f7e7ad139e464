"""Requests counted by verdict, as `--fail-on` names them."""

from __future__ import annotations

from vcbench.lossless.result import TIES, CellResult, Verdict

COUNTS: dict[str, tuple[Verdict, ...]] = {
    "violations": (Verdict.VIOLATION,),
    "ties": TIES,
    "stop_mismatches": (Verdict.STOP_MISMATCH,),
    "missing": (Verdict.MISSING,),
}


def count_of(metric: str, cell: CellResult) -> int:
    """Requests of a cell with one of the metric's verdicts."""
    return sum(cell.counts[verdict] for verdict in COUNTS[metric])
