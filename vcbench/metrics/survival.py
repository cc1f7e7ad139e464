"""How long outputs stay equal to full KV's: Kaplan and Meier's estimate, an output that ends equal being censored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcbench.metrics.interval import TAIL, resamples
from vcbench.metrics.text import first_divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Share of `n` outputs still equal to full KV's after t tokens, for t = 1, 2, …; lists with one entry a token.

    low, high: 95 % band over outputs (bootstrap), None for fewer than two. at_risk: outputs equal before that token and
    not ended. median: the first t at which at most half are still equal; None if that is never seen.
    """

    n: int
    diverged: int
    value: list[float]
    low: Sequence[float | None]
    high: Sequence[float | None]
    at_risk: list[int]
    median: int | None


def survival(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], *, seed: int = 0) -> Survival | None:
    """The curve of (full KV's ids, the arm's ids); None of nothing. An output that ends early diverges at its end."""
    if not pairs:
        return None
    forks = [first_divergence(full, other) for full, other in pairs]
    ends = [len(full) if fork is None else fork + 1 for (full, _), fork in zip(pairs, forks, strict=True)]
    steps, n = max(max(ends), 1), len(pairs)
    risk, event = np.zeros((n, steps)), np.zeros((n, steps))
    for row, (end, fork) in enumerate(zip(ends, forks, strict=True)):
        risk[row, :end] = 1.0
        if fork is not None:
            event[row, fork] = 1.0
    value = _curve(event.sum(axis=0), risk.sum(axis=0))
    low: Sequence[float | None] = [None] * steps
    high: Sequence[float | None] = [None] * steps
    if n > 1:
        weights = resamples(n, seed)
        curves = _curve(weights @ event, weights @ risk)
        low, high = (list(map(float, np.percentile(curves, tail, axis=0))) for tail in (TAIL, 100 - TAIL))
    halved = np.flatnonzero(value <= 0.5)
    return Survival(
        n=n,
        diverged=sum(fork is not None for fork in forks),
        value=value.tolist(),
        low=low,
        high=high,
        at_risk=[int(count) for count in risk.sum(axis=0)],
        median=int(halved[0]) + 1 if len(halved) else None,
    )


def _curve(events: NDArray[np.float64], at_risk: NDArray[np.float64]) -> NDArray[np.float64]:
    """Product over tokens of 1 - events / at risk; a token at which nobody is at risk changes nothing."""
    curve: NDArray[np.float64] = np.cumprod(1.0 - events / np.maximum(at_risk, 1.0), axis=-1, dtype=np.float64)
    return curve
