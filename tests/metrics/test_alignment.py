"""Bit-parallel alignment against the tables that it replaces, and the span that repeats against trying all."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from vcbench.metrics.alignment import common_subsequence, edit_distance
from vcbench.metrics.text import distinct, longest_repeat

few = st.lists(st.integers(0, 3), max_size=30)


def table(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    """(longest common subsequence, edit distance) by dynamic programming."""
    common = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    edits = [[i + j if not i * j else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i, x in enumerate(a, start=1):
        for j, y in enumerate(b, start=1):
            common[i][j] = common[i - 1][j - 1] + 1 if x == y else max(common[i - 1][j], common[i][j - 1])
            edits[i][j] = min(edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + (x != y))
    return common[-1][-1], edits[-1][-1]


@given(few, few)
def test_alignment_against_the_table(a: list[int], b: list[int]) -> None:
    assert (common_subsequence(a, b), edit_distance(a, b)) == table(a, b)


def test_alignment_beyond_a_machine_word() -> None:
    a = [i * i % 17 for i in range(150)]
    b = [i * 3 % 17 for i in range(131)]
    assert (common_subsequence(a, b), edit_distance(a, b)) == table(a, b)
    assert edit_distance(a, a) == 0
    assert common_subsequence(a, a) == 150


@given(few)
def test_the_longest_repeat_by_trying_all(ids: list[int]) -> None:
    def occurs_twice(size: int) -> bool:
        spans = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
        return len(set(spans)) < len(spans)

    expected = max((size for size in range(1, len(ids)) if occurs_twice(size)), default=0)
    assert longest_repeat(ids) == expected


def test_repetition_of_long_and_of_tiny_outputs() -> None:
    assert longest_repeat([]) == longest_repeat([5]) == 0
    assert longest_repeat([5, 5]) == 1
    assert longest_repeat([7] * 100) == 99
    assert longest_repeat([*range(5000), *range(3000)]) == 3000
    assert distinct([1, 2, 1, 2], 2) == 2 / 3
    assert distinct([1, 2], 3) is None
    assert distinct([1, 2, 3], 3) == 1.0
