"""How KL adds up along an output: the growth curve by step, its slope, and its value at a given length.

At each step the mean KL of the outputs that reach it; the curve is the running sum of these means. Where all outputs
are of one length that is the mean of their running sums; where they are not, an output that ends leaves no jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcbench.metrics.interval import TAIL, Estimate, resamples

REFERENCE_STEP = 250
"""Where the paper (section 2) states its figure: about 6 nats for KVzip at 4x."""
STRAIGHT = 0.95
"""R^2 below which the line is no guess at what lies beyond the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Cumulative KL(full || method) in nats over `n` outputs; lists with one entry a step, the first decoded one first.

    low, high: 95 % band over outputs, None where fewer than two reach the step. reached: outputs that reach it.
    slope: nats a step of the line through the origin that fits the curve best (least squares). straightness: R^2 of
    that line; None where the curve does not vary. at_reference: the curve at step 250, or, where no output is that
    long, the line's value there (`extrapolated`) if it is straight enough; None if it is not.
    """

    n: int
    value: list[float]
    low: list[float | None]
    high: list[float | None]
    reached: list[int]
    slope: Estimate
    straightness: float | None
    at_reference: Estimate | None
    extrapolated: bool


def growth(outputs: Sequence[Sequence[float | None]], *, seed: int = 0) -> Growth | None:
    """The curve of these outputs' KL per step; an output counts up to its first unknown step. None without any step."""
    known = [_known(kl) for kl in outputs]
    known = [kl for kl in known if kl]
    if not known:
        return None
    steps, n = max(map(len, known)), len(known)
    kl, alive = np.zeros((n, steps)), np.zeros((n, steps))
    for row, values in enumerate(known):
        kl[row, : len(values)], alive[row, : len(values)] = values, 1.0
    curve = np.cumsum(kl.sum(axis=0) / alive.sum(axis=0))
    drawn = _resampled(kl, alive, seed) if n > 1 else np.empty((0, steps))
    low, high = _band(drawn, alive)
    positions = np.arange(1, steps + 1, dtype=np.float64)
    slopes = _slope(drawn, positions)
    extrapolated = steps < REFERENCE_STEP
    slope = _estimate(float(_slope(curve[None], positions)[0]), slopes, n)
    at = slopes * REFERENCE_STEP if extrapolated else drawn[:, REFERENCE_STEP - 1]
    value = slope.value * REFERENCE_STEP if extrapolated else float(curve[REFERENCE_STEP - 1])
    straightness = _straightness(curve, slope.value * positions)
    # A curve that is nothing throughout has no R^2, and is straight.
    straight = not curve.any() if straightness is None else straightness >= STRAIGHT
    offered = straight or not extrapolated
    return Growth(
        n=n,
        value=curve.tolist(),
        low=low,
        high=high,
        reached=[int(count) for count in alive.sum(axis=0)],
        slope=slope,
        straightness=straightness,
        at_reference=_estimate(value, at, n) if offered else None,
        extrapolated=extrapolated,
    )


def _known(kl: Sequence[float | None]) -> list[float]:
    values: list[float] = []
    for value in kl:
        if value is None:
            break
        values.append(value)
    return values


def _resampled(kl: NDArray[np.float64], alive: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Curves of resampled outputs, [resamples, steps]; NaN from the first step that none of a resample reaches."""
    drawn = resamples(len(kl), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (drawn @ kl) / (drawn @ alive)
    curves: NDArray[np.float64] = np.cumsum(means, axis=1)
    return curves


def _band(drawn: NDArray[np.float64], alive: NDArray[np.float64]) -> tuple[list[float | None], list[float | None]]:
    low: list[float | None] = []
    high: list[float | None] = []
    for step, reached in enumerate(alive.sum(axis=0)):
        column = drawn[:, step]
        finite = column[np.isfinite(column)]
        bounds = np.percentile(finite, [TAIL, 100 - TAIL]).tolist() if reached > 1 and len(finite) else [None, None]
        low.append(bounds[0])
        high.append(bounds[1])
    return low, high


def _slope(curves: NDArray[np.float64], positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares slope through the origin of each curve, over its finite part."""
    finite = np.isfinite(curves)
    weights = np.where(finite, positions, 0.0)
    found: NDArray[np.float64] = (weights * np.where(finite, curves, 0.0)).sum(axis=1) / np.maximum(
        (weights**2).sum(axis=1), 1.0
    )
    return found


def _straightness(curve: NDArray[np.float64], line: NDArray[np.float64]) -> float | None:
    spread = float(((curve - curve.mean()) ** 2).sum())
    return 1.0 - float(((curve - line) ** 2).sum()) / spread if spread > 0 else None


def _estimate(value: float, drawn: NDArray[np.float64], n: int) -> Estimate:
    finite = drawn[np.isfinite(drawn)]
    if n < 2 or not len(finite):
        return Estimate(value=value, low=None, high=None, n=n)
    low, high = np.percentile(finite, [TAIL, 100 - TAIL])
    return Estimate(value=value, low=float(low), high=float(high), n=n)
