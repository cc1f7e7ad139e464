"""Longest common subsequence and edit distance of two sequences, a row of the table at a time as bits of one number.

Sources: Hyyrö, "Bit-parallel LCS-length computation revisited" (2004); Myers, "A fast bit-vector algorithm for
approximate string matching based on dynamic programming" (1999), with Hyyrö's column output (2003).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence. Cost: len(b) operations on numbers of len(a) bits."""
    places = _places(a)
    full = (1 << len(a)) - 1
    row = full
    for item in b:
        matches = row & places.get(item, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(a) - row.bit_count()


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Least number of insertions, deletions and substitutions that turn `a` into `b`. Cost: as above."""
    if not a or not b:
        return max(len(a), len(b))
    places = _places(a)
    full, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    rises, falls, distance = full, 0, len(a)
    for item in b:
        same = places.get(item, 0)
        diagonal = ((((same & rises) + rises) ^ rises) | same | falls) & full
        up = falls | (~(diagonal | rises) & full)
        down = rises & diagonal
        distance += bool(up & last) - bool(down & last)
        up, down = ((up << 1) | 1) & full, (down << 1) & full
        rises, falls = (down | ~(diagonal | up)) & full, up & diagonal
    return distance


def _places(items: Sequence[Hashable]) -> dict[Hashable, int]:
    """For each item the bits of its positions."""
    places: dict[Hashable, int] = {}
    for index, item in enumerate(items):
        places[item] = places.get(item, 0) | (1 << index)
    return places
