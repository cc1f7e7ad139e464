"""Levels for scalar quantisation that minimise a weighted squared error: one-dimensional k-means, solved exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BINS = 4096
COARSE = 512
_REFINEMENTS = 100


class Histogram:
    """Weight, first and second moment of numbers in [-1, 1], by bin of equal width."""

    def __init__(self) -> None:
        self.moments = np.zeros((3, BINS))

    def add(self, x: Array, weights: Array | None = None) -> None:
        """Takes in numbers x: [n] with weights: [n], 1 each if not given; those outside [-1, 1] go to the end bins."""
        index = np.clip(((x + 1) * (BINS / 2)).astype(np.int64), 0, BINS - 1)
        w = np.ones_like(x) if weights is None else weights
        for moment, values in zip(self.moments, (w, w * x, w * x * x), strict=True):
            moment += np.bincount(index, values, BINS)

    def mean_and_deviation(self) -> tuple[float, float]:
        """Of everything taken in; 0 and 0 of nothing."""
        total, first, second = self.moments.sum(1)
        if total <= 0:
            return 0.0, 0.0
        mean = first / total
        return float(mean), float(max(0.0, second / total - mean * mean) ** 0.5)

    def rounded_to(self, levels: Array) -> tuple[float, float]:
        """Mean and standard deviation once every number is replaced by the nearest level, to a bin's precision."""
        shares, _ = self._by_level(levels)
        if shares.sum() <= 0:
            return 0.0, 0.0
        shares = shares / shares.sum()
        mean = float(shares @ levels)
        return mean, float((shares @ (levels - mean) ** 2) ** 0.5)

    def error(self, levels: Array) -> float:
        """Weighted sum of squared distances to the nearest level, to a bin's precision."""
        owner = self._owner(levels)
        weight, first, second = self.moments
        c = levels[owner]
        return float((second - 2 * c * first + c * c * weight).sum())

    def levels(self, count: int) -> Array:
        """The `count` levels of least error, ascending, [count] float64.

        Optimal over splits at every eighth bin border (dynamic programming over contiguous cells), then refined by
        Lloyd's iteration on all bins. Levels that no weight calls for are spread over [-1, 1].
        """
        if self.moments[0].sum() <= 0:
            return np.linspace(-1, 1, count)
        levels = _best_split(self.moments.reshape(3, COARSE, -1).sum(2), count)
        for _ in range(_REFINEMENTS):
            weights, sums = self._by_level(levels)
            moved = np.where(weights > 0, sums / np.where(weights > 0, weights, 1), levels)
            if np.array_equal(moved, levels):
                break
            levels = np.sort(moved)
        return levels

    def _owner(self, levels: Array) -> NDArray[np.int64]:
        centres = (np.arange(BINS) + 0.5) * (2 / BINS) - 1
        return np.searchsorted((levels[1:] + levels[:-1]) / 2, centres)

    def _by_level(self, levels: Array) -> Array:
        """Weight and first moment that each level gets: [2, count]."""
        owner = self._owner(levels)
        return np.array([np.bincount(owner, moment, len(levels)) for moment in self.moments[:2]])


def _best_split(moments: Array, count: int) -> Array:
    """Means of the `count` contiguous cells of least total error. moments: [3, bins].

    Source: the classic recurrence, best[k][j] = min over i of best[k - 1][i] + cost(i, j). O(count * bins^2).
    """
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(moments, axis=1)], axis=1)
    weight, first, second = (s[None, :] - s[:, None] for s in sums)
    safe = np.where(weight > 0, weight, 1)
    cost = np.where(weight > 0, second - first * first / safe, 0)
    ends = np.arange(cost.shape[0])
    cost[ends[:, None] > ends[None, :]] = np.inf
    best, choices = cost[0], []
    for _ in range(count - 1):
        total = best[:, None] + cost
        choices.append(total.argmin(0))
        best = total.min(0)
    stop, cells = len(best) - 1, []
    for choice in reversed(choices):
        start = int(choice[stop])
        cells.append((start, stop))
        stop = start
    cells.append((0, stop))
    return np.array(sorted(_mean(weight[i, j], first[i, j], i, j, len(best) - 1) for i, j in cells))


def _mean(weight: float, first: float, start: int, stop: int, bins: int) -> float:
    """A cell's mean, or its middle where it has no weight."""
    return first / weight if weight > 0 else (start + stop) / bins - 1
