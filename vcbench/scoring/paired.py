"""A metric of one arm against full KV's on the same requests: difference, interval, flips, a test, and a verdict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vcbench.metrics.interval import (
    MOST,
    Estimate,
    Sums,
    bootstrap,
    quotient,
    samples_to_decide,
    share_difference,
    sign_of,
    upper_bound,
)
from vcbench.scoring.values import Pair
from vcbench.tasks.base import Metric

SIGNIFICANCE = 0.05
ENUMERATED = 12
"""Up to so many differing pairs, all 2**k exchanges are tried; beyond, `EXCHANGES` drawn ones."""
EXCHANGES = 10_000
FEWEST = 6
"""Differing pairs, all in one direction, below which no exact two-sided test can reach 5 %: 2 / 2**5 is above it."""


class Verdict(StrEnum):
    """What n paired requests can say. `SAME`: every one of them has the same value in both arms."""

    SAME = "same in all"
    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"
    TOO_FEW = "too few samples to tell"
    NOTHING = "nothing to compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Arm less full KV over `n` pairs, of which `changed` differ.

    to_wrong, to_right: pairs that flipped, for shares of which more or less is better; wrong is the worse value. p:
    exact McNemar for shares of independent answers, else the test that exchanges the two arms within pairs. more:
    further pairs that would decide it, None where unknown. flips_below: one-sided 95 % bound on the share of pairs that
    change, where none did.
    """

    n: int
    changed: int
    estimate: Estimate | None
    to_wrong: int | None
    to_right: int | None
    p: float | None
    verdict: Verdict
    more: int | None = None
    flips_below: float | None = None


def difference(metric: Metric, arm: Mapping[str, Pair], full: Mapping[str, Pair], *, seed: int = 0) -> Difference:
    """The paired difference over the groups that both have; Cost: up to 10,000 exchanges of n pairs."""
    names = [name for name in arm if name in full]
    if not names:
        return Difference(
            n=0, changed=0, estimate=None, to_wrong=None, to_right=None, p=None, verdict=Verdict.NOTHING
        )  # fmt: skip
    ours, theirs = (np.asarray([side[name] for name in names], dtype=np.float64) for side in (arm, full))
    changed = (ours != theirs).any(axis=1)
    # Where an answer has a value in both arms both denominators are above 0: a group may have other ones in each.
    change = np.sign(ours[:, 0] * theirs[:, 1] - theirs[:, 0] * ours[:, 1])
    lost, won = int((change < 0).sum()), int((change > 0).sum())
    single = metric.kind == "share" and bool((ours[:, 1] == 1).all() and (theirs[:, 1] == 1).all())
    estimate = _interval(ours, theirs, seed)
    if single or (
        metric.kind == "share" and estimate is not None and estimate.low == estimate.high and not changed.any()
    ):
        estimate = share_difference(lost, won, len(names))
    p = mcnemar(lost, won) if single else _exchange_test(ours, theirs, changed, seed)
    if single and estimate is not None and p is not None and p < SIGNIFICANCE:
        estimate = _one_sided(estimate)
    verdict = _verdict(metric, estimate, int(changed.sum()), p)
    directed = metric.kind == "share" and metric.better != "neither"
    wrong, right = (lost, won) if sign_of(metric.better) > 0 else (won, lost)
    return Difference(
        n=len(names),
        changed=int(changed.sum()),
        estimate=estimate,
        to_wrong=wrong if directed else None,
        to_right=right if directed else None,
        p=p,
        verdict=verdict,
        more=_more(len(names), int(changed.sum()), estimate) if verdict is Verdict.TOO_FEW else None,
        flips_below=upper_bound(0, len(names)) if verdict is Verdict.SAME else None,
    )


def _one_sided(estimate: Estimate) -> Estimate:
    """The interval up to 0, whose other side the exact test excludes; it bounds both kinds of flips and is wider."""
    low, high = estimate.low, estimate.high
    if estimate.value < 0:
        return replace(estimate, high=None if high is None else min(high, 0.0))
    return replace(estimate, low=None if low is None else max(low, 0.0))


def mcnemar(lost: int, won: int) -> float | None:
    """Exact two-sided p of McNemar's test: a binomial with 1/2 over the pairs that flipped; None without flips."""
    flips = lost + won
    if not flips:
        return None
    tail = sum(math.comb(flips, k) for k in range(min(lost, won) + 1))
    return min(1.0, float(2 * tail / (1 << flips)))


def _verdict(metric: Metric, estimate: Estimate | None, changed: int, p: float | None) -> Verdict:
    if not changed:
        return Verdict.SAME
    if estimate is None or p is None or p >= SIGNIFICANCE or estimate.value == 0:
        return Verdict.TOO_FEW
    sign = sign_of(metric.better)
    if not sign:
        return Verdict.DIFFERENT
    return Verdict.BETTER if sign * estimate.value > 0 else Verdict.WORSE


def _more(n: int, changed: int, estimate: Estimate | None) -> int | None:
    """Pairs to add until the interval leaves zero and enough pairs differ for an exact test."""
    if estimate is None or estimate.value == 0:
        return None
    by_interval = samples_to_decide(n, estimate.value, estimate.half_width)
    by_test = math.ceil(n * FEWEST / changed) - n
    if by_interval is None:
        return None if n >= 2 else max(1, by_test)
    most = max(1, by_interval, by_test)
    return most if most < MOST else None


def _interval(ours: NDArray[np.float64], theirs: NDArray[np.float64], seed: int) -> Estimate | None:
    """Ratio of sums less ratio of sums, with a percentile bootstrap over pairs."""
    if ours[:, 1].sum() <= 0 or theirs[:, 1].sum() <= 0:
        return None
    pairs: list[list[float]] = np.concatenate([ours, theirs], axis=1).tolist()
    return bootstrap(pairs, _less, seed=seed)


def _less(sums: Sums) -> NDArray[np.float64]:
    """The first two columns' quotient less that of the others."""
    return quotient(sums[..., :2]) - quotient(sums[..., 2:])


def _exchange_test(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], changed: NDArray[np.bool_], seed: int
) -> float | None:
    """Two-sided p: how often exchanging the arms within pairs gives a difference at least as large."""
    count = int(changed.sum())
    if not count or ours[:, 1].sum() <= 0 or theirs[:, 1].sum() <= 0:
        return None
    if count <= ENUMERATED:
        exchanged = np.asarray(list(itertools.product((0.0, 1.0), repeat=count)))
    else:
        exchanged = _exchanges(count, seed)
    step = exchanged @ (theirs - ours)[changed]
    new, old = ours.sum(axis=0) + step, theirs.sum(axis=0) - step
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.abs(_ratio(new) - _ratio(old))
    observed = abs(_ratio(ours.sum(axis=0)) - _ratio(theirs.sum(axis=0)))
    extreme = int((found >= observed * (1 - 1e-9)).sum())
    return extreme / len(found) if count <= ENUMERATED else (extreme + 1) / (len(found) + 1)


@lru_cache(maxsize=2)
def _exchanges(count: int, seed: int) -> NDArray[np.float64]:
    """Which of `count` pairs are exchanged in each draw: [EXCHANGES, count] of 0 and 1, the same for the same seed."""
    drawn = np.random.default_rng([seed, count]).integers(2, size=(EXCHANGES, count)).astype(np.float64)
    drawn.flags.writeable = False
    return drawn


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    quotient: NDArray[np.float64] = sums[..., 0] / sums[..., 1]
    return quotient
