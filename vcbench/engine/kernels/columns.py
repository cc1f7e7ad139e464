"""How much attention each key gets from many query rows: the highest share, or the sum of shares."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.attention import BLOCK, LOWEST, head_rows
from vcbench.engine.kernels.simd import Float, exp, fma_rows

TILE_TOKENS = 8
SPLITS = 8
_MINUS_INFINITY = Float(-np.inf)
_LANES = 64


@numba.njit(nogil=True)
def row_maximum(line: Any, width: int) -> Any:
    """Maximum of line[:width], width a multiple of 64."""
    lanes = np.full(_LANES, LOWEST, np.float32)
    for start in range(0, width, _LANES):
        for j in range(_LANES):
            x = line[start + j]
            lanes[j] = x if x > lanes[j] else lanes[j]
    highest = LOWEST
    for j in range(_LANES):
        highest = lanes[j] if lanes[j] > highest else highest
    return highest


@numba.njit(nogil=True)
def exponentials(line: Any, width: int) -> Any:
    """Turns line[:width] into exp(line - maximum), width a multiple of 64; returns their sum."""
    highest = row_maximum(line, width)
    lanes = np.zeros(_LANES, np.float32)
    for start in range(0, width, _LANES):
        for j in range(_LANES):
            weight = exp(line[start + j] - highest)
            line[start + j] = weight
            lanes[j] += weight
    total = Float(0)
    for j in range(_LANES):
        total += lanes[j]
    return total


@numba.njit(nogil=True)
def tile_columns(
    query: Any, rows: int, group: int, keys: Any, visible_first: int, take_highest: bool, scores: Any, found: Any
) -> None:
    """Adds one tile of rows to `found`. Row r sees the first visible_first + r // group keys.

    query: [rows, D], scaled. keys: [blocks, D, 64]. scores: scratch [rows, blocks * 64]. found: [columns].
    """
    depth, stride = query.shape[1], scores.shape[1]
    blocks = (visible_first + (rows - 1) // group + BLOCK - 1) // BLOCK
    width = blocks * BLOCK
    for r in range(rows):
        for j in range(width):
            scores[r, j] = Float(0)
    for b in range(blocks):
        target = scores.ctypes.data + 4 * b * BLOCK
        fma_rows(rows, query.ctypes.data, depth, keys[b].ctypes.data, target, stride, depth, BLOCK)
    for r in range(rows):
        line = scores[r]
        for j in range(visible_first + r // group, width):
            line[j] = _MINUS_INFINITY
        share = Float(1) / exponentials(line, width)
        if take_highest:
            for j in range(min(width, found.shape[0])):
                weight = line[j] * share
                found[j] = weight if weight > found[j] else found[j]
        else:
            for j in range(min(width, found.shape[0])):
                found[j] += line[j] * share


@numba.njit(parallel=True, nogil=True, cache=True)
def column_shares(q: Any, keys: Any, visible_first: int, take_highest: bool, parts: Any) -> None:
    """Softmax shares of q: [n, H, D] over keys: [Hk, blocks, D, 64], gathered by column into parts: [Hk, SPLITS, m].

    Token i sees the first visible_first + i keys. A split takes every SPLITS-th tile of tokens, so that the result does
    not depend on the number of threads. `parts` starts as zeros.
    """
    n, heads, depth = q.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    scale = 1.0 / np.sqrt(depth)
    tiles = (n + TILE_TOKENS - 1) // TILE_TOKENS
    for task in numba.prange(kv_heads * SPLITS):
        head = task // SPLITS
        query = np.empty((TILE_TOKENS * group, depth), np.float32)
        scores = np.empty((TILE_TOKENS * group, keys.shape[1] * BLOCK), np.float32)
        for tile in range(task % SPLITS, tiles, SPLITS):
            first = tile * TILE_TOKENS
            count = min(TILE_TOKENS, n - first)
            head_rows(q[first : first + count], head, group, scale, query)
            tile_columns(
                query, count * group, group, keys[head], visible_first + first, take_highest, scores,
                parts[head, task % SPLITS],
            )  # fmt: skip
