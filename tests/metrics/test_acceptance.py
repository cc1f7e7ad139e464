"""Acceptance against a brute-force decoder, the counting identity, and what a stop inside a draft does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.samples import VERI, answer
from vcbench.metrics.acceptance import Rounds, acceptance, round_problem


@st.composite
def outputs(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], int]:
    """Rounds as an engine makes them: drafts of up to k, a prefix accepted, the last round possibly cut."""
    cap = draw(st.integers(1, 40))
    drafted, accepted, committed, length = [], [], [], 1
    while length < cap:
        d = draw(st.integers(0, 6))
        a = draw(st.integers(0, d))
        c = min(a + 1, cap - length)
        drafted.append(d)
        accepted.append(a)
        committed.append(c)
        length += c
    return drafted, accepted, committed, length


@given(st.lists(outputs(), max_size=4))
def test_against_brute_force(requests: list[tuple[list[int], list[int], list[int], int]]) -> None:
    lines = [
        answer(VERI, str(n), drafted=d, accepted=a, committed=c, token_ids=[7] * length)
        for n, (d, a, c, length) in enumerate(requests)
    ]
    assert [round_problem(line) for line in lines] == [""] * len(lines)
    figures = acceptance(Rounds.of(lines))
    fates: dict[int, list[bool]] = {}
    committed = []
    for d, a, c, _ in requests:
        for drafted, accepted, kept in zip(d, a, c, strict=True):
            committed.append(kept)
            for position in range(1, drafted + 1):
                cut = kept <= accepted and position > kept
                if not cut:
                    fates.setdefault(position, []).append(position <= accepted)
    assert figures.rounds == len(committed)
    assert figures.committed == sum(length - 1 for *_, length in requests)
    assert sum(size * count for size, count in enumerate(figures.histogram)) == figures.committed
    assert sum(figures.histogram) == figures.rounds
    for position in figures.by_position:
        seen = fates.get(position.position, [])
        assert (position.drafted, position.accepted) == (len(seen), sum(seen))
    assert figures.accepted == sum(map(sum, fates.values()))
    assert figures.accepted <= figures.committed


def test_a_stop_inside_the_draft() -> None:
    # Five drafted and accepted, but the third token is a stop: three tokens count, and nothing is known beyond.
    figures = acceptance(Rounds(drafted=(5,), accepted=(5,), committed=(3,)))
    assert (figures.accepted, figures.committed) == (3, 3)
    assert [(p.position, p.drafted, p.accepted) for p in figures.by_position] == [(1, 1, 1), (2, 1, 1), (3, 1, 1)]
    assert figures.rate == 3 / 5


def test_by_hand() -> None:
    figures = acceptance(Rounds(drafted=(4, 4, 0), accepted=(4, 2, 0), committed=(5, 3, 1)))
    assert figures.histogram == (0, 1, 0, 1, 0, 1)
    assert figures.rate == 6 / 8
    assert [position.rate for position in figures.by_position] == [1.0, 1.0, 0.5, 0.5]
    assert figures.quantiles == (1.4, 3.0, 4.6)


def test_nothing_divides_by_zero() -> None:
    figures = acceptance(Rounds(drafted=(), accepted=(), committed=()))
    assert (figures.rate, figures.histogram, figures.by_position) == (None, (), ())
    assert acceptance(Rounds(drafted=(0,), accepted=(0,), committed=(1,))).rate is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"committed": [5, 3]}, "3 drafts, 3 acceptances and 2 commits are not one per round"),
        ({"accepted": [5, 2, 0]}, "round 1 cannot be: 4 drafted, 5 accepted, 5 committed"),
        ({"committed": [5, 4, 1]}, "round 2 cannot be: 4 drafted, 2 accepted, 4 committed"),
        ({"committed": [5, 3, 0]}, "round 3 cannot be"),
        ({"committed": [4, 3, 1]}, "1 + 8 tokens committed over 3 rounds, but 10 in the output"),
        ({"token_ids": []}, "1 + 9 tokens committed over 3 rounds, but 0 in the output"),
    ],
)
def test_rounds_that_contradict_the_output(changes: dict[str, list[int]], says: str) -> None:
    assert says in round_problem(replace(answer(VERI, "one"), **changes))
    assert round_problem(replace(answer(VERI, "one"), error="failed", **changes)) == ""


def test_an_output_of_one_token_has_no_rounds() -> None:
    assert round_problem(answer(VERI, "one", token_ids=[5], drafted=[], accepted=[], committed=[])) == ""
