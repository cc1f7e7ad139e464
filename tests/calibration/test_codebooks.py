"""Codebooks are no worse than other levels, and those of a normal distribution are Lloyd and Max's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from vcbench.calibration.codebooks import Histogram
from vcbench.compressors.fits.kvquant import q_normed
from vcbench.engine.codes.lloyd_max import lloyd_max

SPREAD = 8
"""Standard deviations that reach from 0 to 1."""


def normal(count: int = 400_000) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    drawn = np.random.default_rng(3).standard_normal(count) / SPREAD
    return drawn[abs(drawn) < 1]


def of(x: object, weights: object = None) -> Histogram:
    histogram = Histogram()
    histogram.add(np.asarray(x, np.float64), None if weights is None else np.asarray(weights, np.float64))
    return histogram


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_levels_of_normal_numbers_are_those_of_lloyd_and_max(bits: int) -> None:
    """A-KVQ-2, the error to 1 %; the levels themselves are drawn from finitely many numbers."""
    x = normal()
    levels = of(x).levels(1 << bits)
    nearest = abs(x[:, None] - levels[None]).min(1)
    expected = lloyd_max(bits, None)

    assert np.mean(nearest**2) * SPREAD**2 == pytest.approx(expected.mse, rel=0.01)
    inner = slice(len(levels) // 4, -len(levels) // 4 or None)
    np.testing.assert_allclose(levels[inner] * SPREAD, expected.levels[inner], atol=0.08)


@given(
    x=st.lists(st.floats(-1, 1), min_size=1, max_size=60),
    count=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 9),
)
@hypothesis_settings(max_examples=60)
def test_no_worse_than_a_uniform_grid(x: list[float], count: int, seed: int) -> None:
    """A-KVQ-2, weighted; to a bin's precision."""
    weights = np.random.default_rng(seed).random(len(x)) + 0.01
    histogram = of(x, weights)
    levels = histogram.levels(count)

    assert len(levels) == count
    assert (np.diff(levels) >= 0).all()
    assert histogram.error(levels) <= histogram.error(np.linspace(-1, 1, count)) + 1e-6


def test_the_split_is_the_best_of_all() -> None:
    x = np.random.default_rng(1).uniform(-1, 1, 9)
    weights = np.random.default_rng(2).random(9)
    ordered = np.argsort(x)
    x, weights = x[ordered], weights[ordered]

    def cost(cut: tuple[int, ...]) -> float:
        parts = itertools.pairwise([0, *cut, len(x)])
        total = 0.0
        for a, b in parts:
            centre = np.average(x[a:b], weights=weights[a:b])
            total += float((weights[a:b] * (x[a:b] - centre) ** 2).sum())
        return total

    best = min(cost(cut) for cut in itertools.combinations(range(1, len(x)), 3))
    levels = of(x, weights).levels(4)
    reached = float((weights * (abs(x[:, None] - levels[None]).min(1)) ** 2).sum())
    assert reached == pytest.approx(best, rel=1e-3, abs=1e-6)


def test_weight_draws_levels() -> None:
    x = np.linspace(-1, 1, 4001)
    weights = np.where(x > 0.5, 1000.0, 1.0)
    assert (of(x, weights).levels(8) > 0.5).sum() > (of(x).levels(8) > 0.5).sum()


def test_nothing_is_spread_evenly() -> None:
    np.testing.assert_array_equal(of([]).levels(4), np.linspace(-1, 1, 4))


def test_q_norm_keeps_mean_and_deviation() -> None:
    """A-KVQ-5."""
    x = np.clip(np.random.default_rng(0).standard_normal(200_000) * 0.3 + 0.1, -1, 1)
    histogram = of(x)
    levels = histogram.levels(4)
    decoded = q_normed(histogram, levels)
    owner = np.searchsorted((levels[1:] + levels[:-1]) / 2, x)

    assert decoded[owner].mean() == pytest.approx(x.mean(), abs=1e-3)
    assert decoded[owner].std() == pytest.approx(x.std(), abs=1e-3)
    assert levels[owner].std() < x.std() - 0.01
