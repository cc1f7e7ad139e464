"""What an interval is: a seeded bootstrap over requests or batches; for shares the exact one of Clopper and Pearson."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

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
        if self.low is None or self.high is None:
            return None
        return 0.0 if self.low == self.high else (self.high - self.low) / 2


Sums = NDArray[np.float64]
"""Sums over samples, [..., columns]; the leading axes are resamples."""
ValueOf = Callable[[Sums], NDArray[np.float64]]
"""The figure that sums give, [...]: NaN where they give none, infinity for `never`."""
Kind = Literal["share", "mean", "ratio"]
"""How samples (numerator, denominator) make a figure; a share of single answers is a binomial."""
Better = Literal["higher", "lower", "neither"]


def sign_of(better: Better) -> float:
    """1 where more is better, -1 where less is, 0 where neither: every direction is taken from here."""
    return {"higher": 1.0, "lower": -1.0, "neither": 0.0}[better]


def right_operator(operator: str, better: Better) -> str:
    """The operator to fail by in place of one that would fail a run for being better; empty where that is right."""
    sign = sign_of(better)
    if not sign or (operator[0] == "<") == (sign > 0):
        return ""
    return "<" if sign > 0 else ">"


def quotient(sums: Sums) -> NDArray[np.float64]:
    """a / b of two columns, (a / b) / (c / d) of four; NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)
        if sums.shape[-1] == 2:
            return found
        by = np.where(sums[..., 3] > 0, sums[..., 2] / sums[..., 3], np.nan)
        return np.where(by > 0, found / by, np.nan)


def bootstrap(samples: Sequence[Sequence[float]], value: ValueOf = quotient, *, seed: int = 0) -> Estimate | None:
    """A figure of sums over samples with a percentile bootstrap over them; None where they give no figure.

    With two samples the interval is no more than the range of both.
    """
    table = np.asarray(samples, dtype=np.float64)
    if not len(table):
        return None
    found = float(value(np.asarray([math.fsum(column) for column in table.T])))
    if math.isnan(found):
        return None
    low, high = interval_of(value(resamples(len(table), seed) @ table)) if len(table) > 1 else (None, None)
    return Estimate(value=found, low=low, high=high, n=len(table))


def interval_of(drawn: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """The 95 % percentile interval of resampled figures; unknown where none is a figure."""
    known = drawn[~np.isnan(drawn)]
    if not len(known):
        return None, None
    # Between a number and infinity there is nothing to interpolate.
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(known).all() else "inverted_cdf"
    low, high = np.percentile(known, [TAIL, 100 - TAIL], method=method)
    return float(low), float(high)


def ratio(numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0) -> Estimate | None:
    """Sum over sum with a percentile bootstrap over the pairs; None without pairs or with nothing to divide by."""
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} numerators for {len(denominators)} denominators")
    return bootstrap(list(zip(numerators, denominators, strict=True)), seed=seed)


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


def pooled(kind: Kind, pairs: Sequence[Sequence[float]], value: ValueOf = quotient) -> Estimate | None:
    """The figure of some samples with its interval: exact for a share of single answers, else a bootstrap.

    Where all groups of a share agree, the bootstrap has no width; the exact interval of so many groups takes its place.
    """
    if kind != "share":
        return bootstrap(pairs, value)
    if all(pair[1] == 1 for pair in pairs):
        return share(round(sum(pair[0] for pair in pairs)), len(pairs))
    found = bootstrap(pairs, value)
    if found is None or found.value not in (0.0, 1.0):
        return found
    return share(len(pairs) if found.value else 0, len(pairs))


def paired_margin(
    now: Sequence[Sequence[float]],
    before: Sequence[Sequence[float]],
    *,
    better: Better,
    tolerance: float,
    kind: Kind = "ratio",
    value: ValueOf = quotient,
    seed: int = 0,
) -> tuple[float, float, Estimate] | None:
    """Two figures over the same n samples, and by how much the first stays within a tolerance of the second.

    The margin is sign * now - (sign - tolerance) * before: 0 or more where `now` is worse by at most that share, sign
    being 1 where more is better and -1 where less is. Its interval resamples the samples, each with both of its values;
    that of a share of single answers is exact.

    Args:
        now, before: columns of each sample, in the same order.
    """
    if len(now) != len(before):
        raise ValueError(f"{len(now)} values now for {len(before)} before")
    if not len(now):
        return None
    new, old = np.asarray(now, dtype=np.float64), np.asarray(before, dtype=np.float64)
    sign, n = sign_of(better), len(new)
    found, reference = float(value(new.sum(axis=0))), float(value(old.sum(axis=0)))
    margin = sign * found - (sign - tolerance) * reference
    if math.isnan(margin):
        # Infinity less infinity: it is `never` in both.
        return (found, reference, Estimate(value=0.0, low=None, high=None, n=n)) if found == reference else None
    if kind == "share" and (new[:, 1] == 1).all() and (old[:, 1] == 1).all():
        low, high = _share_margin(new[:, 0], old[:, 0], sign, tolerance)
    elif n < 2:
        low, high = None, None
    else:
        drawn = resamples(n, seed)
        with np.errstate(invalid="ignore"):
            low, high = interval_of(sign * value(drawn @ new) - (sign - tolerance) * value(drawn @ old))
    return found, reference, Estimate(value=margin, low=low, high=high, n=n)


def _share_margin(
    now: NDArray[np.float64], before: NDArray[np.float64], sign: float, tolerance: float
) -> tuple[float, float]:
    """The margin's exact interval: tolerance * before + sign * (now - before), each part bounded at the same time."""
    n, part = len(now), 1 - (1 - CONFIDENCE) / 3
    least, most = clopper_pearson(int(before.sum()), n, confidence=part)
    down, up = _difference(int((now < before).sum()), int((now > before).sum()), n, part)
    low, high = (down, up) if sign > 0 else (-up, -down)
    return tolerance * least + low, tolerance * most + high


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
    low, high = clopper_pearson(successes, n)
    return Estimate(value=successes / n, low=low, high=high, n=n)


def clopper_pearson(successes: int, n: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact two-sided interval of a share of n > 0."""
    one_sided = (1 + confidence) / 2
    high, rest = (upper_bound(count, n, confidence=one_sided) for count in (successes, n - successes))
    return (0.0 if rest is None else 1 - rest), (1.0 if high is None else high)


def share_difference(lost: int, won: int, n: int) -> Estimate | None:
    """The difference of two shares over n pairs, `lost` and `won` of which flipped, with an exact interval.

    Both rates of flips are bounded at once (Bonferroni), so that it holds at 95 % or more; None for n = 0.
    """
    if n == 0:
        return None
    low, high = _difference(lost, won, n, 1 - (1 - CONFIDENCE) / 2)
    return Estimate(value=(won - lost) / n, low=low, high=high, n=n)


def _difference(lost: int, won: int, n: int, confidence: float) -> tuple[float, float]:
    """Won less lost, each within its own interval at this confidence."""
    downs, ups = (clopper_pearson(count, n, confidence=confidence) for count in (lost, won))
    return max(-1.0, ups[0] - downs[1]), min(1.0, ups[1] - downs[0])


def samples_to_decide(n: int, distance: float, half_width: float | None) -> int | None:
    """How many more samples shrink an interval, which narrows with the root of n, to its distance from a bound."""
    if half_width is None:
        return 1 if n < 2 else None
    if distance == 0 or not (math.isfinite(distance) and math.isfinite(half_width)):
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
