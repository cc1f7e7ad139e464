"""Two outputs compared, and one output looked at for loops; all on token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LOOP_COPIES = 3
LOOP_TOKENS = 24
GRAM = 8
LOOPED_SHARE = 1 / 3


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
    """Whether the output repeats itself: it ends in a loop, or more than a third of its 8-grams occurred before.

    It ends in a loop if, for some period p, its last max(3 p, 24) tokens repeat with that period: at least three copies
    of a p-gram and at least 24 tokens, so that a short enumeration is no loop. The share also finds loops of whole
    sentences with small variations, and loops that a stop token ended.
    """
    return repeated_share(ids) > LOOPED_SHARE or ends_in_loop(ids)


def repeated_share(ids: Sequence[int]) -> float:
    """The share of 8-grams that occurred earlier in the output; 0 for outputs too short to tell (under 32 tokens)."""
    count = len(ids) - GRAM + 1
    if len(ids) < 4 * GRAM:
        return 0.0
    return 1 - len({tuple(ids[i : i + GRAM]) for i in range(count)}) / count


def ends_in_loop(ids: Sequence[int]) -> bool:
    """Whether the last tokens repeat with some period; see `is_looped`."""
    for period in range(1, len(ids) // LOOP_COPIES + 1):
        needed = max(LOOP_COPIES * period, LOOP_TOKENS)
        if needed <= len(ids) and all(ids[-i] == ids[-i - period] for i in range(1, needed - period + 1)):
            return True
    return False


def distinct(ids: Sequence[int], size: int) -> float | None:
    """Different n-grams over all n-grams (distinct-n); 1 less it is rep-n. None for outputs shorter than n."""
    count = len(ids) - size + 1
    return len({tuple(ids[i : i + size]) for i in range(count)}) / count if count > 0 else None


def longest_repeat(ids: Sequence[int]) -> int:
    """Length in tokens of the longest span that occurs at two places, which may overlap; 0 if no token occurs twice.

    Cost: O(n log^2 n): equal spans of length 2^k are found by pairs of those of half the length.
    """
    _, ranks = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
    n, size = len(ids), 1
    if n < 2 or not _repeats(ranks):
        return 0
    while 2 * size < n:
        doubled = _paired(ranks, size, n)
        if not _repeats(doubled):
            break
        ranks, size = np.unique(doubled, return_inverse=True)[1], 2 * size
    low, high = size, min(2 * size, n)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _repeats(_paired(ranks, middle - size, n)) else (low, middle)
    return low


def _paired(ranks: NDArray[np.int64], gap: int, n: int) -> NDArray[np.int64]:
    """One number for each pair of spans that begin `gap` apart: equal where both are."""
    return ranks[: len(ranks) - gap] * (n + 1) + ranks[gap:]


def _repeats(keys: NDArray[np.int64]) -> bool:
    return len(np.unique(keys)) < len(keys)
