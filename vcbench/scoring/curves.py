"""What a cell's divergence lines and outputs say by position: distribution of KL, its growth, survival of equality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vcbench.metrics.distribution import Distribution, distribution
from vcbench.metrics.growth import Growth, growth
from vcbench.metrics.survival import Survival, survival
from vcbench.records.reader import CellInfo, Run
from vcbench.scoring.answers import answered

STEPS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
"""Positions at which curves are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """One cell on one task, by position; a part is None where nothing was recorded for it."""

    distribution: Distribution | None
    growth: Growth | None
    survival: Survival | None


def curves_of(run: Run, cell: CellInfo, task: str) -> Curves:
    """The curves of a cell; full KV has none."""
    lines = [line for key, line in run.divergences.items() if key[:2] == (cell.id, task)]
    baseline = run.baseline(task)
    pairs: list[tuple[Sequence[int], Sequence[int]]] = []
    if baseline is not None and cell.arm != "full":
        full = answered(run, baseline, task)
        ours = answered(run, cell, task)
        pairs = [(full[name].token_ids, line.token_ids) for name, line in ours.items() if name in full]
    return Curves(
        distribution=distribution(lines),
        growth=growth([line.kl for line in lines]),
        survival=survival(pairs),
    )
