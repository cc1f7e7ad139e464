"""The sampled token of a row: arg-max of scores plus Gumbel noise."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

_UNIT = 2.0**-52
_SHIFT = np.uint64(12)


@numba.njit(nogil=True, cache=True)
def gumbel(word: Any) -> float:
    """Gumbel noise of a 64-bit word: -log(-log(1 - v)) with v in (0, 1), made of the word's upper 52 bits."""
    v = (float(word >> _SHIFT) + 0.5) * _UNIT
    return -math.log(-math.log1p(-v))


@numba.njit(nogil=True, cache=True)
def gumbels(words: Any) -> Any:
    """The noise of each word, [V]."""
    noise = np.empty(words.shape[0], np.float64)
    for i in range(words.shape[0]):
        noise[i] = gumbel(words[i])
    return noise


@numba.njit(nogil=True, cache=True)
def gumbel_arg_max(scores: Any, ids: Any, words: Any) -> int:
    """The first of `ids` with the largest scores[i] + gumbel(words[ids[i]]); -1 if all scores are -inf.

    As -log(1 - v) >= v, noise is at most -log(v): where even that cannot win, no logarithm is taken.
    """
    best, highest = -1, -np.inf
    for i in range(scores.shape[0]):
        word = words[ids[i]]
        v = (float(word >> _SHIFT) + 0.5) * _UNIT
        most = 1.4 if v >= 0.25 else 2.8 if v >= 0.0625 else 5.6 if v >= 0.00390625 else 37.0
        if scores[i] + most <= highest:
            continue
        perturbed = scores[i] + gumbel(word)
        if perturbed > highest:
            best, highest = ids[i], perturbed
    return best
