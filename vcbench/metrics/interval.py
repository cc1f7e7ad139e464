"""Uncertainty: a seeded bootstrap over requests, and the exact binomial bound of Clopper and Pearson."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95
TAIL = 50 * (1 - CONFIDENCE)
MOST = 1_000_000


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
    drawn = resamples(n, seed)
    sums = drawn @ bottom
    resampled = (drawn @ top)[sums > 0] / sums[sums > 0]
    low, high = np.percentile(resampled, [TAIL, 100 - TAIL])
    return Estimate(value=value, low=float(low), high=float(high), n=n)


@lru_cache(maxsize=4)
def resamples(n: int, seed: int = 0) -> NDArray[np.float64]:
    """How often each of n samples is drawn in each resample: [RESAMPLES, n], the same for the same seed."""
    drawn = np.random.default_rng([seed, n]).integers(n, size=(RESAMPLES, n))
    offsets = np.arange(RESAMPLES)[:, None] * n
    counts = np.bincount((drawn + offsets).ravel(), minlength=RESAMPLES * n).reshape(RESAMPLES, n).astype(np.float64)
    counts.flags.writeable = False
    return counts


def mean(values: Sequence[float], *, seed: int = 0) -> Estimate | None:
    """The mean with a percentile bootstrap; None of nothing."""
    return ratio(values, [1.0] * len(values), seed=seed)


Pair = tuple[float, float]


def paired_margin(
    now: Sequence[Pair], before: Sequence[Pair], *, sign: float, tolerance: float, seed: int = 0
) -> tuple[float, float, Estimate] | None:
    """Two ratios of sums over the same n requests, and by how much the first stays within a tolerance of the second.

    The margin is sign * now - (sign - tolerance) * before: 0 or more where `now` is worse by at most that share, sign
    being 1 where more is better and -1 where less is. Its interval resamples requests, each with both of its values.

    Args:
        now, before: (numerator, denominator) of each request, in the same order.
    """
    new, old = np.asarray(now, dtype=np.float64), np.asarray(before, dtype=np.float64)
    if new.shape != old.shape:
        raise ValueError(f"{len(new)} values now for {len(old)} before")
    if not len(new) or new[:, 1].sum() <= 0 or old[:, 1].sum() <= 0:
        return None
    n = len(new)
    value, reference = (float(x[:, 0].sum() / x[:, 1].sum()) for x in (new, old))
    margin = sign * value - (sign - tolerance) * reference
    if n < 2:
        return value, reference, Estimate(value=margin, low=None, high=None, n=n)
    drawn = resamples(n, seed)
    new_sums, old_sums = drawn @ new, drawn @ old
    usable = (new_sums[:, 1] > 0) & (old_sums[:, 1] > 0)
    new_sums, old_sums = new_sums[usable], old_sums[usable]
    margins = sign * new_sums[:, 0] / new_sums[:, 1] - (sign - tolerance) * old_sums[:, 0] / old_sums[:, 1]
    low, high = np.percentile(margins, [TAIL, 100 - TAIL])
    return value, reference, Estimate(value=margin, low=float(low), high=float(high), n=n)


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


def share(successes: int, n: int) -> Estimate | None:
    """A share with the exact two-sided interval of Clopper and Pearson: 0 of 4 may be up to 0.60. None for n = 0."""
    if n == 0:
        return None
    one_sided = (1 + CONFIDENCE) / 2
    high = upper_bound(successes, n, confidence=one_sided)
    low = upper_bound(n - successes, n, confidence=one_sided)
    return Estimate(value=successes / n, low=None if low is None else 1 - low, high=high, n=n)


def samples_to_decide(n: int, distance: float, half_width: float | None) -> int | None:
    """How many more samples shrink an interval, which narrows with the root of n, to its distance from a bound."""
    if half_width is None:
        return 1 if n < 2 else None
    if distance == 0:
        return None
    total = n * (half_width / abs(distance)) ** 2
    return max(1, math.ceil(total) - n) if total < MOST else None


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
