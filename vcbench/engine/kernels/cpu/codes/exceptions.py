"""What stays exact among codes: single numbers of a block (outliers), and whole tokens.

Everything is read by address; a request's `exceptions` are the address of its row of int64 fields.
"""

from __future__ import annotations

from typing import Any

import numba

from vcbench.engine.kernels.cpu.codes.folding import load_half
from vcbench.engine.kernels.cpu.exact.attention import SCORE_STRIDE
from vcbench.engine.kernels.cpu.simd import Float, fma, load, load_int16, load_int32, load_int64, store

EXACT_TOKENS, POSITIONS, EXACT_KEYS, EXACT_VALUES, K_OUTLIERS = range(5)
"""How many tokens are exact; addresses of their positions (ascending int32) and of keys and values, [Hk, n, D].

From `K_OUTLIERS` on: addresses of what the key outliers' codes miss (float16), of places (int16, ascending within a
tile) and starts (int32, of tile block * Hk + head); 0 if there are no outliers. From `V_OUTLIERS` on: the values'.
"""
V_OUTLIERS, EXCEPTION_FIELDS = K_OUTLIERS + 3, K_OUTLIERS + 6


@numba.njit(nogil=True)
def field(exceptions: int, number: int) -> Any:
    """A field of a request's row."""
    return load_int64(exceptions + 8 * number)


@numba.njit(nogil=True)
def outliers_at(exceptions: int, kind: int) -> Any:
    """Addresses of numbers, places and starts; kind: K_OUTLIERS or V_OUTLIERS."""
    return field(exceptions, kind), field(exceptions, kind + 1), field(exceptions, kind + 2)


@numba.njit(nogil=True)
def first_token(exceptions: int, position: int) -> int:
    """How many exact tokens lie before a position."""
    low, high = 0, field(exceptions, EXACT_TOKENS)
    while low < high:
        middle = (low + high) // 2
        if load_int32(field(exceptions, POSITIONS) + 4 * middle) < position:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(nogil=True)
def tokens_within(exceptions: int, start: int, count: int) -> Any:
    """Which exact tokens, first and end, are among the `count` positions from `start` on."""
    begin = first_token(exceptions, start)
    end = begin
    while end < field(exceptions, EXACT_TOKENS) and load_int32(field(exceptions, POSITIONS) + 4 * end) < start + count:
        end += 1
    return begin, end


@numba.njit(nogil=True)
def exact_scores(exceptions: int, begin: int, end: int, start: int, head: int, query: Any, scores: Any) -> None:
    """scores[r, position - start] = query[r] . the exact key, for exact tokens `begin` .. `end` - 1."""
    for i in range(begin, end):
        j = load_int32(field(exceptions, POSITIONS) + 4 * i) - start
        key = field(exceptions, EXACT_KEYS) + 4 * (head * field(exceptions, EXACT_TOKENS) + i) * query.shape[1]
        for r in range(query.shape[0]):
            total = Float(0)
            for d in range(query.shape[1]):
                total = fma(query[r, d], load(key + 4 * d), total)
            scores[r, j] = total


@numba.njit(nogil=True)
def exact_values(
    exceptions: int, begin: int, end: int, start: int, head: int, depth: int, weights: Any, acc: Any
) -> None:
    """acc[r] += the weighted exact values; their weights become 0, so that their codes add nothing."""
    for i in range(begin, end):
        j = load_int32(field(exceptions, POSITIONS) + 4 * i) - start
        value = field(exceptions, EXACT_VALUES) + 4 * (head * field(exceptions, EXACT_TOKENS) + i) * depth
        for r in range(acc.shape[0]):
            for d in range(depth):
                acc[r, d] = fma(weights[r, j], load(value + 4 * d), acc[r, d])
            weights[r, j] = Float(0)


@numba.njit(nogil=True)
def add_key_outliers(exceptions: int, tile_index: int, tile: int) -> None:
    """Adds what outliers' codes miss to a tile of keys, [D, 64] at an address."""
    numbers, places, starts = outliers_at(exceptions, K_OUTLIERS)
    if starts == 0:
        return
    for i in range(load_int32(starts + 4 * tile_index), load_int32(starts + 4 * tile_index + 4)):
        at = tile + 4 * load_int16(places + 2 * i)
        store(at, load(at) + load_half(numbers + 2 * i))


@numba.njit(nogil=True)
def add_value_outliers(
    exceptions: int, tile_index: int, depth: int, rows: int, weights: int, acc: int, width: int
) -> None:
    """acc[r] += what outliers' codes miss, weighted. Addresses: weights: [rows, SCORE_STRIDE], acc: [rows, width]."""
    numbers, places, starts = outliers_at(exceptions, V_OUTLIERS)
    if starts == 0:
        return
    token, line = 0, 0
    for i in range(load_int32(starts + 4 * tile_index), load_int32(starts + 4 * tile_index + 4)):
        place, missing = load_int16(places + 2 * i), load_half(numbers + 2 * i)
        while place >= line + depth:
            token, line = token + 1, line + depth
        weight, at = weights + 4 * token, acc + 4 * (place - line)
        for r in range(rows):
            to = at + 4 * width * r
            store(to, fma(load(weight + 4 * SCORE_STRIDE * r), missing, load(to)))
