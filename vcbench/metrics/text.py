"""Two outputs compared, and one output looked at for loops; all on token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

LOOP_COPIES = 3
LOOP_TOKENS = 24


def first_divergence(reference: Sequence[object], other: Sequence[object]) -> int | None:
    """Index of the first token (or character) that differs, or where the shorter one ends; None if both are equal."""
    for index, (a, b) in enumerate(zip(reference, other, strict=False)):
        if a != b:
            return index
    return None if len(reference) == len(other) else min(len(reference), len(other))


def token_f1(reference: Sequence[int], other: Sequence[int]) -> float:
    """F1 of the two bags of token ids: 2 x common / (both lengths); 1 if both are empty."""
    if not reference and not other:
        return 1.0
    common = sum((Counter(reference) & Counter(other)).values())
    return 2 * common / (len(reference) + len(other))


def is_looped(ids: Sequence[int]) -> bool:
    """Whether the output ends in a loop.

    It does if, for some period p, its last max(3 p, 24) tokens repeat with that period: at least three copies of a
    p-gram and at least 24 tokens, so that a short enumeration is no loop. A stop token after a loop hides it.
    """
    for period in range(1, len(ids) // LOOP_COPIES + 1):
        needed = max(LOOP_COPIES * period, LOOP_TOKENS)
        if needed <= len(ids) and all(ids[-i] == ids[-i - period] for i in range(1, needed - period + 1)):
            return True
    return False
