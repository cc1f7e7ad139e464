"""Attention over codes besides which there are exact tokens or a sketch of what the codes have missed.

A task takes a chunk for all heads: each block's keys are decoded into one tile a head, the sketch added, and met by the
exact kernels. Any scheme of `QuantisedCache` is read, with exact tokens or without.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from vcbench.engine.kernels.cpu.codes.tiles import decode_by_lane, decode_by_line, put_page_tokens, widened
from vcbench.engine.kernels.cpu.exact.attention import (
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
from vcbench.engine.kernels.cpu.simd import Float, address, fma_rows
from vcbench.engine.kernels.cpu.workers import fetch_add, spread


class KeyCodes(NamedTuple):
    """codes: [vectors, blocks, size, bytes] of `done` tokens; form, levels: see `tiles.level_table`.

    steps, minima: float16 bits, [vectors, blocks, 64], or [vectors, groups, size] by_channel, where a group is `group`
    tokens; the last dimension is 0 where there are none.
    """

    codes: Any
    steps: Any
    minima: Any
    form: int
    levels: Any
    by_channel: bool
    group: int
    done: int


class ValueCodes(NamedTuple):
    """codes: [Hk, blocks, 64, bytes] of `done` tokens; steps, minima: [Hk, tokens * groups], or [Hk, 0] for none."""

    codes: Any
    steps: Any
    minima: Any
    form: int
    levels: Any
    group: int
    groups: int
    done: int


class Sketch(NamedTuple):
    """One bit a channel of what the codes have missed: codes: [Hk, blocks, D, 8], scales: [Hk, blocks, 64].

    levels: as `tiles.level_table` has them; matrix: [D, D], by which the signs of a token are multiplied. Empty where
    there is none.
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


class Scratch(NamedTuple):
    """A thread's working memory. scales: [2, n], the steps and offsets of a tile; keys: [Hk * D, 64].

    signs: [D, 64]; values: [64, width].
    """

    scales: Any
    keys: Any
    signs: Any
    values: Any


@numba.njit(nogil=True)
def make_scratch(keys: Any, values: Any, depth: int, width: int) -> Any:
    """Working memory, zeros."""
    vectors, size = keys.codes.shape[0], keys.codes.shape[2]
    of_keys = size * (BLOCK // min(BLOCK, keys.group)) if keys.by_channel else BLOCK
    return Scratch(
        np.zeros((2, max(of_keys, BLOCK * values.groups + width)), np.float32),
        np.zeros((vectors * size, BLOCK), np.float32),
        np.zeros((depth, BLOCK), np.float32),
        np.zeros((BLOCK, width), np.float32),
    )


@numba.njit(nogil=True)
def key_scales(keys: Any, vector: int, block: int, count: int, scales: Any) -> None:
    """Steps and offsets of a vector's first `count` tokens of a block, as `tiles` takes them."""
    if not keys.by_channel:
        widened(keys.steps[vector, block], 1.0, scales[0, :BLOCK])
        widened(keys.minima[vector, block], 0.0, scales[1, :BLOCK])
        return
    size, inside = keys.codes.shape[2], min(keys.group, BLOCK)
    for g in range((count + inside - 1) // inside):
        row, part = (block * BLOCK + g * inside) // keys.group, slice(g * size, (g + 1) * size)
        widened(keys.steps[vector, row], 1.0, scales[0, part])
        widened(keys.minima[vector, row], 0.0, scales[1, part])


@numba.njit(nogil=True)
def coded_tiles(keys: Any, block: int, count: int, scales: Any, tiles: Any) -> None:
    """What a block's codes stand for, vector after vector: tiles: [vectors * size, 64].

    Only the first `count` tokens mean anything.
    """
    size = keys.codes.shape[2]
    steps, offsets, levels = address(scales[0]), address(scales[1]), address(keys.levels)
    for vector in range(keys.codes.shape[0]):
        key_scales(keys, vector, block, count, scales)
        codes, out = address(keys.codes[vector, block]), address(tiles[vector * size])
        if keys.by_channel:
            inside = min(keys.group, BLOCK)
            decode_by_line(keys.form, codes, levels, steps, offsets, 1, size, inside, out, size, BLOCK)
        else:
            decode_by_lane(keys.form, codes, levels, steps, offsets, out, size)


@numba.njit(nogil=True)
def add_sketch(sketch: Any, head: int, block: int, scratch: Any, tile: int) -> None:
    """tile[:, j] += matrix @ (signs of token j * its scale), for the address of a tile [D, 64]."""
    depth, steps, offsets = sketch.matrix.shape[0], scratch.scales[0], scratch.scales[1]
    widened(sketch.scales[head, block], 1.0, steps[:BLOCK])
    offsets[:BLOCK] = Float(0)
    signs = address(scratch.signs)
    codes = address(sketch.codes[head, block])
    decode_by_lane(1, codes, address(sketch.levels), address(steps), address(offsets), signs, depth)
    fma_rows(depth, address(sketch.matrix), depth, signs, tile, BLOCK, depth, BLOCK)


@numba.njit(nogil=True)
def key_tiles(
    keys: Any, sketch: Any, exact: Any, pages: Any, block: int, depth: int, scratch: Any
) -> Any:  # fmt: skip
    """Puts a block's stored keys into scratch.keys, head after head; returns how many of its tokens come from codes.

    With 0 such tokens nothing is put there.
    """
    ready = min(BLOCK, keys.done - block * BLOCK)
    if ready <= 0:
        return 0
    tiles = scratch.keys
    coded_tiles(keys, block, ready, scratch.scales, tiles)
    begin, end = tokens_within(exact, block, ready)
    for head in range(tiles.shape[0] // depth):
        tile = tiles[head * depth : (head + 1) * depth]
        if sketch.matrix.size:
            add_sketch(sketch, head, block, scratch, address(tile))
        for i in range(begin, end):
            tile[:, exact.positions[i] - block * BLOCK] = exact.keys[head, i]
        if ready < BLOCK:
            page = pages.table[block - pages.first_block] + pages.keys_at + head * pages.head_bytes
            put_page_tokens(page, ready, True, tile)
    return ready


@numba.njit(nogil=True)
def tokens_within(exact: Any, block: int, ready: int) -> Any:
    """Which exact entries, first and end, are among the first `ready` tokens of a block."""
    begin = np.searchsorted(exact.positions, block * BLOCK)
    return begin, np.searchsorted(exact.positions, block * BLOCK + ready)


@numba.njit(nogil=True)
def value_tile(values: Any, exact: Any, pages: Any, head: int, block: int, scratch: Any) -> Any:
    """Address of a block's stored values of one head: the exact page, or scratch.values."""
    page, tile = 0, scratch.values
    if block >= pages.first_block:
        page = pages.table[block - pages.first_block] + head * pages.head_bytes + pages.values_at
    ready = min(BLOCK, values.done - block * BLOCK)
    if ready <= 0:
        return page
    depth, width = exact.values.shape[2], tile.shape[1]
    groups, start, numbers = values.groups, block * BLOCK * values.groups, ready * values.groups
    widened(values.steps[head, start : start + numbers], 1.0, scratch.scales[0])
    widened(values.minima[head, start : start + numbers], 0.0, scratch.scales[1])
    decode_by_line(
        values.form, address(values.codes[head, block]), address(values.levels),
        address(scratch.scales[0]), address(scratch.scales[1]), groups, 1,
        values.group if groups > 1 else width, address(tile), ready, width,
    )  # fmt: skip
    begin, end = tokens_within(exact, block, ready)
    for i in range(begin, end):
        tile[exact.positions[i] - block * BLOCK, :depth] = exact.values[head, i]
    if ready < BLOCK:
        put_page_tokens(page, ready, False, tile)
    return address(tile)


@numba.njit(nogil=True)
def attend_tiled_chunk(
    query: Any, keys: Any, values: Any, sketch: Any, exact: Any, pages: Any, first_visible: int, group: int,
    chunk: int, blocks: int, scratch: Any, scores: Any, row_sum: Any, row_max: Any, row_sums: Any, acc: Any,
) -> None:  # fmt: skip
    """All heads' query rows over one chunk. query: [Hk, rows, D], scaled; acc: [Hk, rows, width].

    scores: [rows, SCORE_STRIDE] and row_sum: [Hk, rows, 64] are scratch. row_max, row_sums: [Hk, rows].
    """
    kv_heads, rows, depth = query.shape
    row_max[:], row_sum[:], acc[:] = LOWEST, Float(0), Float(0)
    for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
        ready = key_tiles(keys, sketch, exact, pages, block, depth, scratch)
        page = pages.table[block - pages.first_block] + pages.keys_at if block >= pages.first_block else 0
        first = first_row_beyond(block * BLOCK, first_visible, rows, group)
        for head in range(kv_heads):
            keys_at = address(scratch.keys[head * depth]) if ready else page + head * pages.head_bytes
            block_step(
                query[head], first, rows, group, first_visible - block * BLOCK, keys_at,
                value_tile(values, exact, pages, head, block, scratch), depth, acc.shape[2], scores, row_max[head],
                row_sum[head], acc[head],
            )  # fmt: skip
    for head in range(kv_heads):
        for r in range(rows):
            row_sums[head, r] = lane_total(row_sum[head], r)


@numba.njit(nogil=True)
def attend_tiled_chunks(
    query: Any, keys: Any, values: Any, sketch: Any, exact: Any, pages: Any, first_visible: int, group: int,
    blocks: int, taken: Any, part_max: Any, part_sum: Any, part_acc: Any, _worker: int,
) -> None:  # fmt: skip
    """`attend_tiled` for the chunks that one thread takes, up to their combination."""
    kv_heads, rows, depth = query.shape
    chunks, width = part_acc.shape[0], part_acc.shape[3]
    scratch = make_scratch(keys, values, depth, width)
    scores = np.empty((rows, SCORE_STRIDE), np.float32)
    row_sum = np.empty((kv_heads, rows, BLOCK), np.float32)
    chunk = fetch_add(address(taken), 1)
    while chunk < chunks:
        attend_tiled_chunk(
            query, keys, values, sketch, exact, pages, first_visible, group, chunk, blocks, scratch, scores, row_sum,
            part_max[chunk], part_sum[chunk], part_acc[chunk],
        )  # fmt: skip
        chunk = fetch_add(address(taken), 1)


@numba.njit(nogil=True, cache=True)
def attend_tiled(
    workers: int, q: Any, keys: Any, values: Any, sketch: Any, exact: Any, pages: Any, first_visible: int,
    width: int, out: Any,
) -> None:  # fmt: skip
    """Attention of q: [n, H, D] over one layer; token i sees first_visible + i tokens. out: [n, Hk, H / Hk, D].

    keys: KeyCodes, values: ValueCodes, sketch: Sketch, exact: ExactEntries, pages: Pages. Tokens from
    `done` on come from the pages.
    """
    n, heads, depth = q.shape
    kv_heads = out.shape[1]
    group = heads // kv_heads
    rows = n * group
    scale = Float(1.0 / np.sqrt(depth))
    blocks = (first_visible + n - 1 + BLOCK - 1) // BLOCK
    chunks = (blocks + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS
    query = np.empty((kv_heads, rows, depth), np.float32)
    for head in range(kv_heads):
        head_rows(q, head, group, scale, query[head])
    part_max = np.empty((chunks, kv_heads, rows), np.float32)
    part_sum = np.empty((chunks, kv_heads, rows), np.float32)
    part_acc = np.empty((chunks, kv_heads, rows, width), np.float32)
    arguments = (
        query, keys, values, sketch, exact, pages, first_visible, group, blocks, np.zeros(1, np.int64), part_max,
        part_sum, part_acc,
    )  # fmt: skip
    spread(workers, attend_tiled_chunks, arguments)
    combine_heads(part_max, part_sum, part_acc, out)
