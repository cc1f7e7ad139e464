"""Attention over codes that are not of the stored keys alone: rotated groups of pre-RoPE heads, exact tokens, a sketch.

A task takes a chunk for all heads, since a rotation may run across heads: each block's keys are decoded into one tile a
head and brought into the stored form there, then met by the exact kernels.
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
from vcbench.engine.kernels.quantised import begin_tile, combine_heads, decode_keys, keys_by_level, value_block
from vcbench.engine.kernels.simd import Float, fma, fma_rows


class KeyCodes(NamedTuple):
    """codes: [vectors, blocks, size, bytes], the other arrays as `kernels.quantised` takes them; `done` tokens."""

    codes: Any
    steps: Any
    minima: Any
    levels: Any
    by_channel: bool
    symmetric: bool
    bits: int
    group: int
    done: int


class ValueCodes(NamedTuple):
    """codes: [Hk, blocks, 64, bytes], the other arrays as `kernels.quantised` takes them; `done` tokens."""

    codes: Any
    steps: Any
    minima: Any
    levels: Any
    symmetric: bool
    bits: int
    group: int
    done: int


class KeyForm(NamedTuple):
    """How coded keys become stored ones; see `frames.Decoding`."""

    order: Any
    together: int
    cos: Any
    sin: Any


class Sketch(NamedTuple):
    """One bit a channel of what the codes have missed: codes: [Hk, blocks, D, 8], scales: [Hk, blocks, 64].

    levels: [2]; matrix: [D, D], by which the signs of a token are multiplied. Empty where there is none.
    """

    codes: Any
    scales: Any
    levels: Any
    matrix: Any


NO_SKETCH = Sketch(
    np.empty((0, 0, 0, 0), np.uint8), np.empty((0, 0, 0), np.uint16), np.empty(0, np.float32),
    np.empty((0, 0), np.float32),
)  # fmt: skip


class ExactEntries(NamedTuple):
    """positions: [n] int32; keys, values: [Hk, n, D], which stand in place of what codes give there."""

    positions: Any
    keys: Any
    values: Any


class Pages(NamedTuple):
    """The exact tail: addresses of its pages, the block of the first one, and byte offsets inside a page."""

    table: Any
    first_block: int
    keys_at: int
    values_at: int
    head_bytes: int


@numba.njit(nogil=True)
def hadamard_rows(tile: Any) -> None:
    """Hadamard transform, without its scale, down each column of tile: [n, 64], n a power of two."""
    span = 1
    while span < tile.shape[0]:
        for base in range(0, tile.shape[0], 2 * span):
            for i in range(base, base + span):
                upper, lower = tile[i], tile[i + span]
                for j in range(BLOCK):
                    a, b = upper[j], lower[j]
                    upper[j] = a + b
                    lower[j] = a - b
        span *= 2


@numba.njit(nogil=True)
def rope_rows(source: Any, cos: Any, sin: Any, position: int, count: int, scale: float, out: Any) -> None:
    """out[d, j] = scale * source[d, j] turned by position + j, for j < count. source: [D, 64]."""
    half = source.shape[0] // 2
    for d in range(half):
        c, s = cos[d, position : position + count], sin[d, position : position + count]
        first, second = source[d], source[half + d]
        upper, lower = out[d], out[half + d]
        for j in range(count):
            a, b = first[j] * scale, second[j] * scale
            upper[j] = fma(a, c[j], -(b * s[j]))
            lower[j] = fma(b, c[j], a * s[j])


@numba.njit(nogil=True)
def coded_tiles(keys: Any, block: int, count: int, tiles: Any) -> None:
    """The codes of a block's first `count` tokens, vector after vector, as rows of tiles: [vectors * size, 64]."""
    size = keys.codes.shape[2]
    for vector in range(keys.codes.shape[0]):
        decode_keys(
            keys.codes[vector], keys.steps[vector], keys.minima[vector], keys.levels, keys.by_channel, keys.symmetric,
            keys.bits, keys.group, block, count, tiles[vector * size : (vector + 1) * size],
        )  # fmt: skip


@numba.njit(nogil=True)
def add_sketch(sketch: Any, head: int, block: int, count: int, signs: Any, tile: Any) -> None:
    """tile[:, j] += matrix @ (signs of token j * its scale). signs: scratch [D, 64], zero from `count` on."""
    depth = sketch.matrix.shape[0]
    keys_by_level(sketch.codes[head], sketch.scales[head], sketch.levels, block, count, 1, signs)
    fma_rows(depth, sketch.matrix.ctypes.data, depth, signs.ctypes.data, tile.ctypes.data, BLOCK, depth, BLOCK)


@numba.njit(nogil=True)
def undo_order(order: Any, together: int, depth: int, coded: Any, plain: Any) -> None:
    """plain: [channels, 64] = the coded channels in their own order, each group of heads through its transform."""
    for channel in range(order.shape[0]):
        plain[channel] = coded[order[channel]]
    size = together * depth
    for first in range(0, order.shape[0], size):
        hadamard_rows(plain[first : first + size])


@numba.njit(nogil=True)
def key_tiles(
    keys: Any, form: Any, sketch: Any, exact: Any, pages: Any, block: int, depth: int, coded: Any, plain: Any,
    signs: Any, tiles: Any,
) -> Any:  # fmt: skip
    """Puts a block's stored keys into tiles: [Hk, width, 64]; returns how many of its tokens come from codes.

    coded, plain: scratch [channels, 64]. With 0 such tokens the tiles are left as they are.
    """
    page = pages.table[block - pages.first_block] + pages.keys_at if block >= pages.first_block else 0
    ready = min(BLOCK, keys.done - block * BLOCK)
    if ready <= 0:
        return 0
    coded_tiles(keys, block, ready, coded)
    scale = Float(1.0 / np.sqrt(max(1, form.together) * depth))
    if form.together:
        undo_order(form.order, form.together, depth, coded, plain)
    for head in range(tiles.shape[0]):
        tile, rows = tiles[head], slice(head * depth, (head + 1) * depth)
        begin_tile(page + head * pages.head_bytes, ready, tile)
        if form.together:
            rope_rows(plain[rows], form.cos, form.sin, block * BLOCK, ready, scale, tile)
        else:
            tile[:depth, :ready] = coded[rows, :ready]
        if sketch.matrix.size:
            signs[:, ready:] = Float(0)
            add_sketch(sketch, head, block, ready, signs, tile)
        for i in range(exact.positions.shape[0]):
            j = exact.positions[i] - block * BLOCK
            if 0 <= j < ready:
                tile[:depth, j] = exact.keys[head, i]
    return ready


@numba.njit(nogil=True)
def value_tile(values: Any, exact: Any, pages: Any, head: int, block: int, depth: int, tile: Any) -> Any:
    """Address of a block's stored values of one head; see `key_tiles`."""
    page = pages.table[block - pages.first_block] + head * pages.head_bytes if block >= pages.first_block else 0
    address = value_block(
        values.codes[head], values.steps[head], values.minima[head], values.levels, values.symmetric, values.bits,
        values.group, depth, block, values.done, page + pages.values_at, tile,
    )  # fmt: skip
    ready = min(BLOCK, values.done - block * BLOCK)
    for i in range(exact.positions.shape[0]):
        j = exact.positions[i] - block * BLOCK
        if 0 <= j < ready:
            tile[j, :depth] = exact.values[head, i]
    return address


@numba.njit(parallel=True, nogil=True, cache=True)
def attend_framed(
    q: Any, keys: Any, values: Any, form: Any, sketch: Any, exact: Any, pages: Any, first_visible: int, width: int,
    out: Any,
) -> None:  # fmt: skip
    """Attention of q: [n, H, D] over one layer; token i sees first_visible + i tokens. out: [n, Hk, H / Hk, D].

    keys: KeyCodes, values: ValueCodes, form: KeyForm, sketch: Sketch, exact: ExactEntries, pages: Pages. Tokens from
    `done` on come from the pages.
    """
    n, heads, depth = q.shape
    kv_heads = out.shape[1]
    group = heads // kv_heads
    rows = n * group
    scale = Float(1.0 / np.sqrt(depth))
    blocks = (first_visible + n - 1 + BLOCK - 1) // BLOCK
    chunks = (blocks + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS
    part_max = np.full(kv_heads * chunks * rows, LOWEST, np.float32)
    part_sum = np.empty(kv_heads * chunks * rows, np.float32)
    part_acc = np.zeros((kv_heads * chunks * rows, width), np.float32)
    for chunk in numba.prange(chunks):
        query = np.empty((kv_heads, rows, depth), np.float32)
        for head in range(kv_heads):
            head_rows(q, head, group, scale, query[head])
        tiles = np.zeros((kv_heads, width, BLOCK), np.float32)
        coded = np.zeros((kv_heads * depth, BLOCK), np.float32)
        plain = np.zeros((kv_heads * depth, BLOCK), np.float32)
        signs = np.zeros((depth, BLOCK), np.float32)
        value = np.zeros((BLOCK, width), np.float32)
        scores = np.empty((rows, SCORE_STRIDE), np.float32)
        row_sum = np.zeros((kv_heads, rows, BLOCK), np.float32)
        for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
            ready = key_tiles(keys, form, sketch, exact, pages, block, depth, coded, plain, signs, tiles)
            page = pages.table[block - pages.first_block] + pages.keys_at if block >= pages.first_block else 0
            first = first_row_beyond(block * BLOCK, first_visible, rows, group)
            for head in range(kv_heads):
                keys_address = tiles[head].ctypes.data if ready else page + head * pages.head_bytes
                parts = slice((head * chunks + chunk) * rows, (head * chunks + chunk + 1) * rows)
                block_step(
                    query[head], first, rows, group, first_visible - block * BLOCK, keys_address,
                    value_tile(values, exact, pages, head, block, depth, value), depth, width, scores,
                    part_max[parts], row_sum[head], part_acc[parts],
                )  # fmt: skip
        for head in range(kv_heads):
            for r in range(rows):
                part_sum[(head * chunks + chunk) * rows + r] = lane_total(row_sum[head], r)
    combine_heads(part_max, part_sum, part_acc, chunks, out)
