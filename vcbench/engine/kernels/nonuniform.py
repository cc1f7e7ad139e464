"""Attention over codes of a codebook with sparse outliers; keys are decoded, then turned to their positions.

Blocks are decoded into cache-sized tiles one after the other. The order of a key tile: levels within each channel's
range, outliers, rotary embedding, exact first tokens. A task takes a chunk for all heads, which share the angles.
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
    combine_heads,
    first_row_beyond,
    head_rows,
    lane_total,
)
from vcbench.engine.kernels.simd import Float, half_as_float
from vcbench.engine.kernels.tasks import fetch_add
from vcbench.engine.kernels.tiles import decode_by_line, widened
from vcbench.engine.kernels.turns import rope_tile


class Keys(NamedTuple):
    """Coded keys of a layer. codes: [Hk, blocks, D, bytes]; offsets, ranges: float16 bits of each channel, [Hk, D].

    levels: as `tiles.level_table` has them. Outliers by tile (block * Hk + head): numbers: [N] float16 bits; places in
    the tile: [N] int16; starts: int32. cos, sin: [blocks, D / 2, 64], the rotary embedding. first: the exact keys of
    the first tokens, [Hk, f, D].
    """

    codes: Any
    levels: Any
    offsets: Any
    ranges: Any
    numbers: Any
    places: Any
    starts: Any
    cos: Any
    sin: Any
    first: Any


class Values(NamedTuple):
    """Coded values of a layer. codes: [Hk, blocks, 64, bytes]; offsets, ranges: float16 bits by token.

    levels, outliers as in `Keys`. first: the exact values of the first tokens, [Hk, f, D].
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
    flat, start, end = tile.reshape(-1), coded.starts[tile_index], coded.starts[tile_index + 1]
    if tile.shape[1] == columns:
        for i in range(start, end):
            flat[coded.places[i]] = half_as_float(coded.numbers[i])
        return
    for i in range(start, end):
        place = np.int64(coded.places[i])
        tile[place // columns, place % columns] = half_as_float(coded.numbers[i])


@numba.njit(nogil=True)
def key_tile(keys: Any, head: int, block: int, form: int, scales: Any, tile: Any) -> None:
    """tile[d, j]: the keys of one block and head at their positions. scales: [2, D], ranges and offsets."""
    depth = keys.codes.shape[2]
    decode_by_line(
        form, keys.codes[head, block].ctypes.data, keys.levels.ctypes.data, scales[0].ctypes.data,
        scales[1].ctypes.data, 1, 0, BLOCK, tile.ctypes.data, depth, BLOCK,
    )  # fmt: skip
    put_outliers(keys, block * keys.codes.shape[0] + head, BLOCK, tile)
    rope_tile(tile.ctypes.data, keys.cos[block].ctypes.data, keys.sin[block].ctypes.data, depth // 2)
    if block == 0:
        for j in range(keys.first.shape[1]):
            tile[:, j] = keys.first[head, j]


@numba.njit(nogil=True)
def value_tile(values: Any, head: int, block: int, form: int, depth: int, scales: Any, tile: Any) -> None:
    """tile[j, d]: the values of one block and head. scales: [2, 64], the block's ranges and offsets."""
    width = tile.shape[1]
    decode_by_line(
        form, values.codes[head, block].ctypes.data, values.levels.ctypes.data, scales[0].ctypes.data,
        scales[1].ctypes.data, 1, 0, width, tile.ctypes.data, BLOCK, width,
    )  # fmt: skip
    put_outliers(values, block * values.codes.shape[0] + head, depth, tile)
    if block == 0:
        for j in range(values.first.shape[1]):
            tile[j, :depth] = values.first[head, j]


class Scratch(NamedTuple):
    """A thread's working memory. scales: [2, 64], of a block's values; keys: [D, 64]; values: [64, width].

    scores: [rows, SCORE_STRIDE]; row_sum: [Hk, rows, 64].
    """

    scales: Any
    keys: Any
    values: Any
    scores: Any
    row_sum: Any


@numba.njit(nogil=True)
def attend_chunk(
    query: Any, keys: Any, values: Any, key_scales: Any, form: int, coded: int, pages: Any, first_visible: int,
    group: int, chunk: int, blocks: int, scratch: Any, row_max: Any, row_sums: Any, acc: Any,
) -> None:  # fmt: skip
    """All heads' query rows over one chunk. query: [Hk, rows, D], scaled; key_scales: [Hk, 2, D].

    acc: [Hk, rows, width]; row_max, row_sums: [Hk, rows].
    """
    (kv_heads, rows, depth), row_sum = query.shape, scratch.row_sum
    row_max[:], row_sum[:], acc[:] = LOWEST, Float(0), Float(0)
    for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
        first, page = first_row_beyond(block * BLOCK, first_visible, rows, group), 0
        if block < coded:
            tokens = slice(block * BLOCK, (block + 1) * BLOCK)
            widened(values.ranges[tokens], 1.0, 1.0, scratch.scales[0])
            widened(values.offsets[tokens], 0.0, 1.0, scratch.scales[1])
        else:
            page = pages.table[block - coded]
        for head in range(kv_heads):
            if block < coded:
                key_tile(keys, head, block, form, key_scales[head], scratch.keys)
                value_tile(values, head, block, form, depth, scratch.scales, scratch.values)
                keys_at, values_at = scratch.keys.ctypes.data, scratch.values.ctypes.data
            else:
                keys_at = page + head * pages.head_bytes + pages.keys_at
                values_at = page + head * pages.head_bytes + pages.values_at
            block_step(
                query[head], first, rows, group, first_visible - block * BLOCK, keys_at, values_at, depth,
                acc.shape[2], scratch.scores, row_max[head], row_sum[head], acc[head],
            )  # fmt: skip
    for head in range(kv_heads):
        for r in range(rows):
            row_sums[head, r] = lane_total(row_sum[head], r)


@numba.njit(parallel=True, nogil=True, cache=True)
def attend_nonuniform(
    workers: int, q: Any, keys: Any, values: Any, form: int, coded: int, pages: Any, first_visible: int, width: int,
    out: Any,
) -> None:  # fmt: skip
    """Attention of q: [n, H, D] over one layer; token i sees first_visible + i tokens. out: [n, Hk, H / Hk, D].

    The first `coded` blocks come from codes, the others from the exact pages. `workers` threads.
    """
    n, heads, depth = q.shape
    kv_heads = out.shape[1]
    group = heads // kv_heads
    rows = n * group
    scale = Float(1.0 / np.sqrt(depth))
    blocks = (first_visible + n - 1 + BLOCK - 1) // BLOCK
    chunks = (blocks + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS
    query = np.empty((kv_heads, rows, depth), np.float32)
    key_scales = np.empty((kv_heads, 2, depth), np.float32)
    for head in range(kv_heads):
        head_rows(q, head, group, scale, query[head])
        widened(keys.ranges[head], 1.0, 1.0, key_scales[head, 0])
        widened(keys.offsets[head], 0.0, 1.0, key_scales[head, 1])
    part_max = np.empty((chunks, kv_heads, rows), np.float32)
    part_sum = np.empty((chunks, kv_heads, rows), np.float32)
    part_acc = np.empty((chunks, kv_heads, rows, width), np.float32)
    taken = np.zeros(1, np.int64)
    for _ in numba.prange(workers):
        scratch = Scratch(
            np.empty((2, BLOCK), np.float32), np.zeros((depth, BLOCK), np.float32),
            np.zeros((BLOCK, width), np.float32), np.empty((rows, SCORE_STRIDE), np.float32),
            np.empty((kv_heads, rows, BLOCK), np.float32),
        )  # fmt: skip
        while True:
            chunk = fetch_add(taken.ctypes.data, 1)
            if chunk >= chunks:
                break
            attend_chunk(
                query, keys, values, key_scales, form, coded, pages, first_visible, group, chunk, blocks, scratch,
                part_max[chunk], part_sum[chunk], part_acc[chunk],
            )  # fmt: skip
    combine_heads(part_max, part_sum, part_acc, out)
