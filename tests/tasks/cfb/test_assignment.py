"""The pairing has the highest sum of all pairings."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from vcbench.tasks.cfb.assignment import best_pairs

SCORE = st.sampled_from([0.0, 1.0, 2.0, 1000.0, 1003.0])


@st.composite
def tables(draw: st.DrawFn) -> list[list[float]]:
    columns = draw(st.integers(1, 5))
    return draw(st.lists(st.lists(SCORE, min_size=columns, max_size=columns), min_size=1, max_size=5))


@given(tables())
def test_no_pairing_is_better(scores: list[list[float]]) -> None:
    pairs = best_pairs(scores)
    rows, columns = len(scores), len(scores[0])
    count = min(rows, columns)
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == count
    every = (
        sum(scores[a][b] for a, b in zip(chosen, order, strict=True))
        for chosen in itertools.combinations(range(rows), count)
        for order in itertools.permutations(range(columns), count)
    )
    assert sum(scores[a][b] for a, b in pairs) == max(every)


def test_nothing_to_pair() -> None:
    assert best_pairs([]) == best_pairs([[], []]) == []
