"""KL against brute force in exact arithmetic, and its behaviour on equal, extreme and broken logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vcbench.engine.decoding.distributions import compare_steps, kl_per_step
from vcbench.metrics.divergence import cumulative, kl_topk, percentiles

finite_logits = arrays(np.float32, (3, 7), elements=st.floats(-60, 60, width=32))


def top1_agreement(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    return compare_steps(reference, other, [0] * len(reference)).top1_agree


def brute(reference: list[float], other: list[float]) -> float:
    """KL by math.fsum in float64."""

    def log_softmax(row: list[float]) -> list[float]:
        top = max(row)
        total = math.log(math.fsum(math.exp(value - top) for value in row))
        return [value - top - total for value in row]

    log_p, log_q = log_softmax(reference), log_softmax(other)
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


@given(finite_logits, finite_logits)
def test_agrees_with_brute_force(reference: np.ndarray, other: np.ndarray) -> None:
    expected = [brute(a, b) for a, b in zip(reference.tolist(), other.tolist(), strict=True)]
    assert kl_per_step(reference, other) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(finite_logits)
def test_equal_logits_give_exactly_zero(logits: np.ndarray) -> None:
    assert kl_per_step(logits, logits.copy()).tolist() == [0.0, 0.0, 0.0]
    assert top1_agreement(logits, logits.copy()).all()


@given(finite_logits, st.integers(-3, 3))
def test_never_negative_near_equality(logits: np.ndarray, steps: int) -> None:
    moved = logits
    for _ in range(abs(steps)):
        moved = np.nextafter(moved, np.float32(np.inf if steps > 0 else -np.inf), dtype=np.float32)
    assert (kl_per_step(logits, moved) >= 0).all()


def test_a_small_divergence_keeps_its_digits() -> None:
    # Two outcomes, log odds e against 0: KL = e^2 / 8 to leading order, far below float32's resolution of the terms.
    reference = np.array([[1e-4, 0.0]], dtype=np.float64)
    other = np.array([[0.0, 0.0]], dtype=np.float64)
    assert kl_per_step(reference, other)[0] == pytest.approx(1.25e-9, rel=1e-4)


def test_more_rows_than_one_block() -> None:
    generator = np.random.default_rng(0)
    reference, other = generator.normal(size=(2, 40, 9)).astype(np.float32)
    expected = [brute(a, b) for a, b in zip(reference.tolist(), other.tolist(), strict=True)]
    assert kl_per_step(reference, other) == pytest.approx(expected, rel=1e-9)
    assert kl_per_step(reference[:0], other[:0]).shape == (0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_broken_rows_are_unknown_and_leave_the_others_alone(bad: float, side: int) -> None:
    pair = np.zeros((2, 3, 4), dtype=np.float32)
    pair[side, 1, 2] = bad
    kl = kl_per_step(pair[0], pair[1])
    assert kl[0] == kl[2] == 0.0
    assert math.isnan(kl[1])
    if math.isnan(bad):
        assert top1_agreement(pair[0], pair[1]).tolist() == [True, False, True]


def test_masked_tokens() -> None:
    masked = np.array([[0.0, -math.inf, 1.0]], dtype=np.float32)
    full = np.array([[0.0, 0.0, 1.0]], dtype=np.float32)
    assert kl_per_step(masked, masked).tolist() == [0.0]
    assert kl_per_step(masked, full)[0] > 0
    assert math.isnan(kl_per_step(full, masked)[0])
    assert math.isnan(kl_per_step(np.full((1, 3), -math.inf), full)[0])


def test_shapes_must_match() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 4\)"):
        kl_per_step(np.zeros((2, 3)), np.zeros((2, 4)))


def test_cumulative_and_percentiles() -> None:
    assert cumulative([0.5, 0.25, None, 1.0]) == [0.5, 0.75, None, None]
    assert cumulative([]) == []
    assert percentiles([1.0, None, 3.0], [0, 50, 100]) == [1.0, 2.0, 3.0]
    assert percentiles([None], [50]) == [None]


@given(finite_logits, finite_logits, st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_log_probabilities_and_overlap_by_hand(reference: np.ndarray, other: np.ndarray, tokens: list[int]) -> None:
    steps = compare_steps(reference, other, tokens)
    for row, token in enumerate(tokens):
        for logits, found in ((reference[row], steps.logprob_full), (other[row], steps.logprob_method)):
            wide = logits.astype(np.float64)
            expected = wide[token] - wide.max() - math.log(np.exp(wide - wide.max()).sum())
            assert found[row] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        best = [sorted(range(7), key=lambda i, x=x: (-x[i], i))[:5] for x in (reference[row], other[row])]
        assert steps.top5_overlap[row] == len(set(best[0]) & set(best[1]))


def test_the_five_best_of_a_large_vocabulary() -> None:
    generator = np.random.default_rng(3)
    for size in (5, 255, 256, 1280, 4000):
        reference = generator.integers(0, 40, size=(6, size)).astype(np.float32)
        other = reference + generator.integers(0, 3, size=reference.shape).astype(np.float32)
        found = compare_steps(reference, other, [0] * 6).top5_overlap
        for row in range(6):
            best = [set(np.argsort(-x[row], kind="stable")[:5].tolist()) for x in (reference, other)]
            assert found[row] == len(best[0] & best[1]), size


def test_a_token_that_the_method_rules_out_has_no_log_probability() -> None:
    full, masked = np.zeros((1, 3), dtype=np.float32), np.array([[0.0, -math.inf, 1.0]], dtype=np.float32)
    steps = compare_steps(full, masked, [1])
    assert steps.logprob_full[0] == pytest.approx(-math.log(3))
    assert math.isnan(steps.logprob_method[0])
    with pytest.raises(ValueError, match="2 tokens for 1 steps"):
        compare_steps(full, full, [1, 2])


def top(logits: np.ndarray, count: int) -> dict[int, float]:
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    return {int(i): float(logprobs[i]) for i in np.argsort(-logprobs)[:count]}


@given(arrays(np.float32, (2, 9), elements=st.floats(-8, 8, width=32)), st.integers(0, 9))
def test_the_topk_bound_is_below_kl(logits: np.ndarray, count: int) -> None:
    exact = brute(logits[0].tolist(), logits[1].tolist())
    bound = kl_topk(top(logits[0], count), top(logits[1], count))
    assert 0 <= bound <= exact + 1e-9
    if count == 9:
        assert bound == pytest.approx(exact, abs=1e-5)


def test_the_topk_bound_grows_with_k_and_is_nothing_without_common_tokens() -> None:
    logits = np.random.default_rng(1).normal(size=(2, 200)).astype(np.float32) * 2
    order = np.argsort(-logits[0])
    names = [top(row, 200) for row in logits]
    bounds = [kl_topk(*({int(i): row[int(i)] for i in order[:k]} for row in names)) for k in (1, 5, 20, 100, 200)]
    assert bounds == sorted(bounds)
    assert kl_topk({1: -0.1}, {2: -0.1}) == 0.0
