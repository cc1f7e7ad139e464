"""Divergence, F1 and loops on token ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.metrics.text import ends_in_loop, first_divergence, is_looped, repeated_share, token_f1

ids = st.lists(st.integers(0, 3), max_size=12)


@given(ids, ids)
def test_first_divergence(a: list[int], b: list[int]) -> None:
    fork = first_divergence(a, b)
    assert fork == first_divergence(b, a)
    if fork is None:
        assert a == b
    else:
        assert a[:fork] == b[:fork]
        assert a[fork : fork + 1] != b[fork : fork + 1]


@given(ids, ids)
def test_f1_against_removal_one_by_one(a: list[int], b: list[int]) -> None:
    left, common = list(b), 0
    for token in a:
        if token in left:
            left.remove(token)
            common += 1
    expected = 1.0 if not a and not b else 2 * common / (len(a) + len(b))
    assert token_f1(a, b) == pytest.approx(expected)
    assert 0.0 <= token_f1(a, b) == token_f1(b, a) <= 1.0
    assert token_f1(a, a) == 1.0


def test_halves_of_a_character_are_different_tokens() -> None:
    # Both decode to U+FFFD; the ids tell them apart.
    assert first_divergence([5, 200], [5, 201]) == 1
    assert token_f1([200], [201]) == 0.0


@pytest.mark.parametrize(
    ("output", "looped"),
    [
        ([1] * 24, True),
        ([1] * 23, False),
        (list(range(100, 140)) + [1, 2, 3] * 8, True),
        (list(range(100, 140)) + [1, 2, 3] * 7, False),
        (list(range(10)) * 3, True),
        (list(range(10)) * 2 + list(range(9)), False),
        (list(range(10, 30)) + list(range(12)) * 3, True),
        ([1, 2] * 20 + [7, 8, 9], False),
        (list(range(200)), False),
        ([], False),
    ],
)
def test_loops(output: list[int], looped: bool) -> None:
    assert ends_in_loop(output) is looped


@given(st.lists(st.integers(0, 1), max_size=40))
def test_loops_by_the_rule(output: list[int]) -> None:
    def by_rule(period: int) -> bool:
        size = max(3 * period, 24)
        tail = output[-size:]
        return size <= len(output) and all(x == y for x, y in zip(tail, tail[period:], strict=False))

    assert ends_in_loop(output) == any(by_rule(period) for period in range(1, len(output) + 1))


def test_a_sentence_repeated_with_variations_is_a_loop() -> None:
    sentence = list(range(100, 130))
    output = [*sentence, 1, *sentence, 2, *sentence, 3, 4, 5]

    assert not ends_in_loop(output)
    assert repeated_share(output) > 1 / 3
    assert is_looped(output)


def test_text_without_repetition_and_short_text_are_no_loops() -> None:
    assert repeated_share(range(128)) == 0
    assert repeated_share([7] * 31) == 0
    assert not is_looped(list(range(128)))
