"""Intervals: the exact bound against exact arithmetic, the bootstrap against theory."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vcbench.metrics.interval import mean, ratio, upper_bound


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_upper_bound_solves_its_equation(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    bound = upper_bound(k, n)
    assert bound is not None
    if k == n:
        assert bound == 1.0
        return
    rate = Fraction(bound)
    tail = sum(comb(n, i) * rate**i * (1 - rate) ** (n - i) for i in range(k + 1))
    assert float(tail) == pytest.approx(0.05, rel=1e-9)
    assert bound > k / n


def test_known_bounds() -> None:
    assert upper_bound(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert upper_bound(0, 300) < 0.01  # type: ignore[operator]
    assert upper_bound(0, 3000) < 0.001  # type: ignore[operator]
    assert upper_bound(1, 10) == pytest.approx(0.3941633)
    assert upper_bound(0, 0) is None
    with pytest.raises(ValueError, match="3 violations of 2"):
        upper_bound(3, 2)


def test_ratio_is_of_the_sums() -> None:
    estimate = ratio([1.0, 9.0], [1.0, 3.0])
    assert estimate is not None
    assert estimate.value == 2.5
    assert estimate.low == 1.0
    assert estimate.high == 3.0
    assert estimate.half_width == 1.0
    assert estimate.n == 2


def test_nothing_divides_by_zero() -> None:
    assert mean([]) is None
    assert ratio([1.0], [0.0]) is None
    single = mean([2.0])
    assert single is not None
    assert (single.value, single.low, single.half_width) == (2.0, None, None)
    sparse = ratio([1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    assert sparse is not None
    assert sparse.value == sparse.low == sparse.high == 1.0
    with pytest.raises(ValueError, match="1 numerators for 2"):
        ratio([1.0], [1.0, 2.0])


def test_bootstrap_is_seeded_and_about_right() -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, size=400).tolist()
    first, again, other = mean(values), mean(values), mean(values, seed=1)
    assert first == again
    assert first is not None
    assert other is not None
    assert first.low != other.low
    standard_error = float(np.std(values) / 20)
    assert first.half_width == pytest.approx(1.96 * standard_error, rel=0.1)
