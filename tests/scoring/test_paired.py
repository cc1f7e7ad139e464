"""Differences to full KV: known values, exact tests, and the verdicts that few samples allow."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vcbench.scoring.paired import Verdict, difference, mcnemar
from vcbench.tasks.base import Metric

SHARE = Metric(name="right", summary="")
MEAN = Metric(name="score", summary="", kind="mean")
RATIO = Metric(name="calls", summary="", kind="ratio")
Pairs = dict[str, tuple[float, float]]


def shares(*values: bool) -> Pairs:
    return {str(number): (float(value), 1.0) for number, value in enumerate(values)}


@pytest.mark.parametrize(
    ("lost", "won", "p"),
    [
        (0, 0, None),
        (1, 0, 1.0),
        (5, 0, 0.0625),
        (6, 0, 0.03125),
        (10, 2, 0.03857421875),
        (3, 3, 1.0),
        (8, 1, 0.0390625),
    ],
)
def test_mcnemar_by_hand(lost: int, won: int, p: float | None) -> None:
    assert mcnemar(lost, won) == p
    assert mcnemar(won, lost) == p


def test_mcnemar_of_many_flips_does_not_overflow() -> None:
    p = mcnemar(1500, 1500)
    assert p == 1.0
    assert 0 < (mcnemar(900, 1100) or 0) < 1e-4


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=9))
@settings(max_examples=60)
def test_exchanging_the_arms_of_shares_is_mcnemar(pairs: list[tuple[bool, bool]]) -> None:
    """Shares are tested by McNemar, and scores of 0 and 1 by exchanges: both are the same test."""
    full, arm = shares(*(a for a, _ in pairs)), shares(*(b for _, b in pairs))
    by_mcnemar, by_exchange = difference(SHARE, arm, full).p, difference(MEAN, arm, full).p
    assert by_mcnemar == (by_exchange if by_exchange is None else pytest.approx(by_exchange))


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6
    )
)
@settings(max_examples=40)
def test_the_exchange_test_by_trying_all(rows: list[tuple[int, int, int, int]]) -> None:
    arm = {str(i): (float(a), float(b)) for i, (a, b, _, _) in enumerate(rows)}
    full = {str(i): (float(c), float(d)) for i, (_, _, c, d) in enumerate(rows)}
    found = difference(RATIO, arm, full)

    def statistic(swaps: tuple[int, ...]) -> float:
        sides = [(r[2:], r[:2]) if swap else (r[:2], r[2:]) for r, swap in zip(rows, swaps, strict=True)]
        ours, theirs = ([sum(side[k][j] for side in sides) for j in (0, 1)] for k in (0, 1))
        return abs(ours[0] / ours[1] - theirs[0] / theirs[1])

    observed = statistic((0,) * len(rows))
    every = [statistic(swaps) for swaps in product((0, 1), repeat=len(rows))]
    if found.p is None:
        assert arm == full
    else:
        assert found.p == pytest.approx(sum(value >= observed - 1e-12 for value in every) / len(every))
    assert found.estimate is not None
    assert abs(found.estimate.value) == pytest.approx(observed)


def test_flips_are_counted_both_ways() -> None:
    found = difference(SHARE, shares(True, False, False, True), shares(True, True, True, False))
    assert (found.n, found.changed, found.to_wrong, found.to_right) == (4, 3, 2, 1)
    assert found.estimate is not None
    assert found.estimate.value == -0.25
    assert found.verdict is Verdict.TOO_FEW
    assert found.more is not None
    assert found.more > 0


def test_the_same_everywhere_says_what_n_can_rule_out() -> None:
    found = difference(SHARE, shares(*[True] * 300), shares(*[True] * 300))
    assert found.verdict is Verdict.SAME
    assert found.p is None
    assert found.flips_below == pytest.approx(0.00994, abs=1e-5)


def test_five_of_five_wrong_are_too_few_and_six_are_not() -> None:
    five = difference(SHARE, shares(*[False] * 5), shares(*[True] * 5))
    assert five.verdict is Verdict.TOO_FEW
    assert five.more == 1
    six = difference(SHARE, shares(*[False] * 6), shares(*[True] * 6))
    assert six.verdict is Verdict.WORSE
    assert difference(SHARE, shares(*[True] * 6), shares(*[False] * 6)).verdict is Verdict.BETTER


def test_direction_is_the_metrics() -> None:
    low, high = {str(i): (float(i % 3), 1.0) for i in range(20)}, {str(i): (5.0 + i % 3, 1.0) for i in range(20)}
    lower = Metric(name="errors", summary="", kind="mean", better="lower")
    neither = Metric(name="length", summary="", kind="mean", better="neither")
    assert difference(MEAN, high, low).verdict is Verdict.BETTER
    assert difference(lower, high, low).verdict is Verdict.WORSE
    assert difference(neither, high, low).verdict is Verdict.DIFFERENT


def test_only_common_requests_are_paired_and_the_seed_decides() -> None:
    arm, full = shares(True, False, True), {"1": (1.0, 1.0), "9": (0.0, 1.0)}
    found = difference(SHARE, arm, full)
    assert (found.n, found.to_wrong) == (1, 1)
    assert difference(SHARE, arm, {}).verdict is Verdict.NOTHING
    wide = {str(i): (math.sin(i), 1.0) for i in range(30)}
    other = {str(i): (math.cos(i), 1.0) for i in range(30)}
    assert difference(MEAN, wide, other) == difference(MEAN, wide, other)
    assert difference(MEAN, wide, other).estimate != difference(MEAN, wide, other, seed=1).estimate


def test_wrong_and_right_follow_what_is_better() -> None:
    """P16: loops that go from 2 of 6 to 5 of 6 are 4 answers gone wrong and 1 gone right."""
    full, arm = shares(True, True, False, False, False, False), shares(False, True, True, True, True, True)
    looped = difference(Metric(name="looped", summary="", better="lower"), arm, full)
    assert (looped.to_wrong, looped.to_right) == (4, 1)
    right = difference(SHARE, arm, full)
    assert (right.to_wrong, right.to_right) == (1, 4)
    capped = difference(Metric(name="hit_max_tokens", summary="", better="neither"), arm, full)
    assert (capped.to_wrong, capped.to_right) == (None, None)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
@settings(max_examples=80)
def test_the_interval_of_shares_and_the_verdict_do_not_contradict(pairs: list[tuple[bool, bool]]) -> None:
    full, arm = shares(*(a for a, _ in pairs)), shares(*(b for _, b in pairs))
    found = difference(SHARE, arm, full)
    assert found.estimate is not None
    low, value, high = found.estimate.low, found.estimate.value, found.estimate.high
    assert low is not None
    assert high is not None
    assert low <= value <= high
    assert low < high
    if found.verdict in (Verdict.BETTER, Verdict.WORSE):
        assert low * high >= 0
    else:
        assert low <= 0 <= high


def test_pairs_that_all_changed_still_have_an_interval() -> None:
    """3 of 3 lost: a bootstrap of them has no width."""
    found = difference(SHARE, shares(False, False, False), shares(True, True, True))
    assert found.estimate is not None
    assert found.estimate.low == -1.0
    assert found.estimate.high is not None
    assert found.estimate.high > -0.5
    assert found.verdict is Verdict.TOO_FEW
