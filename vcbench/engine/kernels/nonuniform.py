"""Attention over codes of a codebook with sparse outliers; keys are decoded, then turned to their positions.

Blocks are decoded into cache-sized tiles one after the other, as in `quantised`, whose packing this shares. The order
of a key tile: levels within each channel's range, outliers, rotary embedding, exact first tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from vcbench.engine.kernels.attention import (
    BLOCK,
    CHUNK_BLOCKS,
    LOWEST,
    SCORE_STRIDE,
    block_step,
    first_row_beyond,
    head_rows,
    lane_total,
)
from vcbench.engine.kernels.quantised import combine_heads, unpacked
from vcbench.engine.kernels.simd import Float, half_as_float


class Keys(NamedTuple):
    """Coded keys of a layer. codes: [Hk, blocks, D, bytes]; table: what each channel's codes stand for, [Hk, D, 2**b].

    Outliers by tile (block * Hk + head): numbers: [N] float16 bits; places in the tile: [N] int16; starts: int32.
    cos, sin: [D / 2, P], the rotary embedding by position. first: the exact keys of the first tokens, [Hk, f, D].
    """

    codes: Any
    table: Any
    numbers: Any
    places: Any
    starts: Any
    cos: Any
    sin: Any
    first: Any


class Values(NamedTuple):
    """Coded values of a layer. codes: [Hk, blocks, 64, bytes]; levels: [2**b]; offsets, ranges: float16 bits by token.

    Outliers as in `Keys`. first: the exact values of the first tokens, [Hk, f, D].
    """

    codes: Any
    levels: Any
    offsets: Any
    ranges: Any
    numbers: Any
    places: Any
    starts: Any
    first: Any


class Pages(NamedTuple):
    """The exact pages: their addresses, and where a layer's keys, values and heads lie in one."""

    table: Any
    keys_at: int
    values_at: int
    head_bytes: int


@numba.njit(nogil=True)
def put_outliers(coded: Any, tile_index: int, columns: int, tile: Any) -> None:
    """Overwrites tile[r, c] for the outliers of a tile of `Keys` or `Values`; a place is r * columns + c."""
    if coded.numbers.size == 0:
        return
    for i in range(coded.starts[tile_index], coded.starts[tile_index + 1]):
        place = np.int64(coded.places[i])
        tile[place // columns, place % columns] = half_as_float(coded.numbers[i])


@numba.njit(nogil=True)
def rotate_tile(cos: Any, sin: Any, start: int, depth: int, tile: Any) -> None:
    """Turns tile[d, j], pairs d and d + depth / 2, to positions start + j."""
    half = depth // 2
    for d in range(half):
        for j in range(BLOCK):
            a, b = tile[d, j], tile[d + half, j]
            c, s = cos[d, start + j], sin[d, start + j]
            tile[d, j] = a * c - b * s
            tile[d + half, j] = b * c + a * s


@numba.njit(nogil=True)
def key_tile(keys: Any, head: int, block: int, bits: int, index: Any, tile: Any) -> None:
    """tile[d, j]: the keys of one block and head at their positions."""
    depth = keys.codes.shape[2]
    for d in range(depth):
        unpacked(keys.codes[head, block, d], bits, index)
        for j in range(BLOCK):
            tile[d, j] = keys.table[head, d, index[j]]
    put_outliers(keys, block * keys.codes.shape[0] + head, BLOCK, tile)
    rotate_tile(keys.cos, keys.sin, block * BLOCK, depth, tile)
    if block == 0:
        for j in range(keys.first.shape[1]):
            for d in range(depth):
                tile[d, j] = keys.first[head, j, d]


@numba.njit(nogil=True)
def value_tile(values: Any, head: int, block: int, bits: int, depth: int, index: Any, tile: Any) -> None:
    """tile[j, d]: the values of one block and head."""
    for j in range(BLOCK):
        unpacked(values.codes[head, block, j], bits, index)
        offset = half_as_float(values.offsets[block * BLOCK + j])
        spread = half_as_float(values.ranges[block * BLOCK + j])
        for d in range(depth):
            tile[j, d] = values.levels[index[d]] * spread + offset
    put_outliers(values, block * values.codes.shape[0] + head, depth, tile)
    if block == 0:
        for j in range(values.first.shape[1]):
            for d in range(depth):
                tile[j, d] = values.first[head, j, d]


@numba.njit(parallel=True, nogil=True, cache=True)
def attend_nonuniform(
    q: Any, keys: Any, values: Any, bits: int, coded: int, pages: Any, first_visible: int, width: int, out: Any
) -> None:
    """Attention of q: [n, H, D] over one layer; token i sees first_visible + i tokens. out: [n, Hk, H / Hk, D].

    The first `coded` blocks come from codes, the others from the exact pages.
    """
    n, heads, depth = q.shape
    kv_heads = out.shape[1]
    group = heads // kv_heads
    rows = n * group
    scale = Float(1.0 / np.sqrt(depth))
    blocks = (first_visible + n - 1 + BLOCK - 1) // BLOCK
    chunks = (blocks + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS
    part_max = np.empty(kv_heads * chunks * rows, np.float32)
    part_sum = np.empty(kv_heads * chunks * rows, np.float32)
    part_acc = np.empty((kv_heads * chunks * rows, width), np.float32)
    for task in numba.prange(kv_heads * chunks):
        head = task // chunks
        chunk = task % chunks
        query = np.empty((rows, depth), np.float32)
        head_rows(q, head, group, scale, query)
        k_tile = np.zeros((width, BLOCK), np.float32)
        v_tile = np.zeros((BLOCK, width), np.float32)
        index = np.empty(max(width, BLOCK), np.int32)
        scores = np.empty((rows, SCORE_STRIDE), np.float32)
        row_sum = np.zeros((rows, BLOCK), np.float32)
        parts = slice(task * rows, (task + 1) * rows)
        row_max = part_max[parts]
        row_max[:] = LOWEST
        acc = part_acc[parts]
        acc[:] = Float(0)
        for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
            if block < coded:
                key_tile(keys, head, block, bits, index, k_tile)
                value_tile(values, head, block, bits, depth, index, v_tile)
                keys_at, values_at = k_tile.ctypes.data, v_tile.ctypes.data
            else:
                page = pages.table[block - coded] + head * pages.head_bytes
                keys_at, values_at = page + pages.keys_at, page + pages.values_at
            first = first_row_beyond(block * BLOCK, first_visible, rows, group)
            block_step(
                query, first, rows, group, first_visible - block * BLOCK, keys_at, values_at, depth, width,
                scores, row_max, row_sum, acc,
            )  # fmt: skip
        for r in range(rows):
            part_sum[task * rows + r] = lane_total(row_sum, r)
    combine_heads(part_max, part_sum, part_acc, chunks, out)
