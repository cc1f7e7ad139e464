"""Uncertainty: a seeded bootstrap over requests, and the exact binomial bound of Clopper and Pearson."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure from `n` requests (or batches) with its interval at 95 %, unknown where n < 2."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width: what follows a ±."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def ratio(numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0) -> Estimate | None:
    """Sum over sum with a percentile bootstrap over the pairs; None without pairs or with nothing to divide by."""
    top = np.asarray(numerators, dtype=np.float64)
    bottom = np.asarray(denominators, dtype=np.float64)
    if len(top) != len(bottom):
        raise ValueError(f"{len(top)} numerators for {len(bottom)} denominators")
    total = math.fsum(bottom)
    if total <= 0:
        return None
    value, n = math.fsum(top) / total, len(top)
    if n < 2:
        return Estimate(value=value, low=None, high=None, n=n)
    drawn = np.random.default_rng([seed, n]).integers(n, size=(RESAMPLES, n))
    sums = bottom[drawn].sum(axis=1)
    resampled = top[drawn].sum(axis=1)[sums > 0] / sums[sums > 0]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Estimate(value=value, low=float(low), high=float(high), n=n)


def mean(values: Sequence[float], *, seed: int = 0) -> Estimate | None:
    """The mean with a percentile bootstrap; None of nothing."""
    return ratio(values, [1.0] * len(values), seed=seed)


def upper_bound(violations: int, n: int, *, confidence: float = CONFIDENCE) -> float | None:
    """One-sided Clopper-Pearson bound on a rate: 0 of 300 gives 0.00994. None for n = 0.

    The largest rate at which seeing at most this many violations still has probability 1 - confidence.
    """
    if not 0 <= violations <= n:
        raise ValueError(f"{violations} violations of {n}")
    if n == 0:
        return None
    if violations == n:
        return 1.0
    low, high = violations / n, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(violations, n, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(k: int, n: int, rate: float) -> float:
    """P(X <= k) of a binomial with 0 < rate < 1, or at an end of that range."""
    if rate <= 0.0:
        return 1.0
    if rate >= 1.0:
        return 0.0 if k < n else 1.0
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    return math.fsum(
        math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_rate + (n - i) * log_rest)
        for i in range(k + 1)
    )
