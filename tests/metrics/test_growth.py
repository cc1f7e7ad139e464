"""Growth curves and survival by hand: unequal lengths, unknown steps, bands, slopes and what is extrapolated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.metrics.growth import REFERENCE_STEP, growth
from vcbench.metrics.survival import survival


def test_outputs_of_one_length_give_the_mean_of_their_sums() -> None:
    found = growth([[0.1, 0.2, 0.3], [0.3, 0.0, 0.1]])
    assert found is not None
    assert found.value == pytest.approx([0.2, 0.3, 0.5])
    assert found.reached == [2, 2, 2]
    assert found.low[2] == pytest.approx(0.4)
    assert found.high[2] == pytest.approx(0.6)


def test_a_constant_rate_is_a_straight_line() -> None:
    found = growth([[0.02] * 300] * 5)
    assert found is not None
    assert found.slope.value == pytest.approx(0.02)
    assert found.straightness == pytest.approx(1.0)
    assert not found.extrapolated
    assert found.at_reference.value == pytest.approx(0.02 * REFERENCE_STEP)
    short = growth([[0.02] * 30] * 5)
    assert short is not None
    assert short.extrapolated
    assert short.at_reference.value == pytest.approx(5.0)
    assert short.at_reference.low == pytest.approx(5.0)


def test_nothing_diverges_where_every_step_is_zero() -> None:
    found = growth([[0.0] * 40] * 3)
    assert found is not None
    assert (found.value[-1], found.slope.value, found.at_reference.value, found.straightness) == (0.0, 0.0, 0.0, None)


def test_an_output_that_ends_leaves_no_jump_and_an_unknown_step_ends_it() -> None:
    found = growth([[1.0], [0.0, 0.5, None, 9.0], []])
    assert found is not None
    assert found.n == 2
    assert found.value == pytest.approx([0.5, 1.0])
    assert found.reached == [2, 1]
    assert found.low[1] is None
    assert growth([]) is None
    assert growth([[None]]) is None


@given(st.lists(st.lists(st.floats(0, 5), min_size=1, max_size=12), min_size=1, max_size=6))
def test_curves_never_fall_and_bands_lie_within_what_was_seen(outputs: list[list[float]]) -> None:
    found = growth(outputs)
    assert found is not None
    assert all(a <= b + 1e-12 for a, b in zip(found.value, found.value[1:], strict=False))
    for step, (low, high) in enumerate(zip(found.low, found.high, strict=True), start=1):
        assert (low is None) == (high is None)
        if low is not None and high is not None:
            # No resample rises by less than the least step of any output, or by more than the largest.
            columns = [[output[i] for output in outputs if len(output) > i] for i in range(step)]
            assert sum(map(min, columns)) - 1e-9 <= low <= high <= sum(map(max, columns)) + 1e-9


def test_survival_by_hand() -> None:
    full = [1, 2, 3, 4]
    pairs = [(full, [1, 9, 9, 9]), (full, full), (full, [1, 2, 3]), (full[:2], full[:2])]
    found = survival(pairs)
    assert found is not None
    # Token 2: one of four differs. The short pair is censored after it. Token 4: one of two ends.
    assert found.value == pytest.approx([1.0, 0.75, 0.75, 0.375])
    assert found.at_risk == [4, 4, 2, 2]
    assert (found.n, found.diverged, found.median) == (4, 2, 4)
    assert survival([]) is None


def test_survival_of_equal_outputs_is_one() -> None:
    found = survival([([1, 2, 3], [1, 2, 3])] * 3)
    assert found is not None
    assert found.value == [1.0, 1.0, 1.0]
    assert found.low == [1.0, 1.0, 1.0]
    assert found.median is None
    empty = survival([([], [])])
    assert empty is not None
    assert empty.value == [1.0]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), max_size=6), st.lists(st.integers(0, 1), max_size=6)),
        min_size=1,
        max_size=8,
    )
)
def test_survival_falls_only_where_outputs_differ(pairs: list[tuple[list[int], list[int]]]) -> None:
    found = survival(pairs)
    assert found is not None
    assert all(a >= b for a, b in zip(found.value, found.value[1:], strict=False))
    assert all(0 <= value <= 1 for value in found.value)
    assert (found.value[-1] == 1.0) == (found.diverged == 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_without_censoring_survival_is_the_share_still_equal(forks: list[int]) -> None:
    """Every output differs in the token after its `fork`, so none is censored."""
    full = list(range(6))
    found = survival([(full, [*full[:fork], 9, *full[fork + 1 :]]) for fork in forks])
    assert found is not None
    shares = [sum(fork >= tokens for fork in forks) / len(forks) for tokens in range(1, max(forks) + 2)]
    assert found.value == pytest.approx(shares)
    assert found.median == next(tokens for tokens, share in enumerate(shares, start=1) if share <= 0.5)


def test_a_poor_line_offers_no_value_beyond_the_outputs() -> None:
    """R^2 of 0.67 and less says nothing of step 250; where outputs reach it, the curve itself is the value."""
    burst = growth([[5.0] + [0.0] * 60 + [5.0] + [0.0] * 10])
    assert burst is not None
    assert burst.straightness is not None
    assert burst.straightness < 0.67
    assert (burst.extrapolated, burst.at_reference) == (True, None)
    long = growth([[5.0] + [0.0] * REFERENCE_STEP])
    assert long is not None
    assert long.at_reference is not None
    assert long.at_reference.value == pytest.approx(5.0)
    single = growth([[0.3]])
    assert single is not None
    assert single.at_reference is None
