"""Attention gathered by column: what each key gets of many query rows, at the highest or in all.

Blocks are met one by one as in `attention`, with a running maximum. Those of the softmax whose shares are wanted come
first and leave their weights behind, so that the shares need no second product; the others follow where the rows'
attention itself is wanted too.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.cpu.exact.attention import (
    BLOCK,
    LOWEST,
    SCORE_STRIDE,
    first_row_beyond,
    head_rows,
    lane_total,
    softmax_block,
)
from vcbench.engine.kernels.cpu.simd import Float, address, exp, fma_rows
from vcbench.engine.kernels.cpu.workers import spread

TILE_ROWS = 96
SPLITS = 8
PAGE, LANE, STOP, SLOT, BLOCK_FIELDS = range(5)
"""Fields of a block: lanes `LANE` .. `STOP` - 1 of page `PAGE`; its columns go to `SLOT` unless that is -1."""
_MINUS_INFINITY = Float(-np.inf)


@numba.njit(nogil=True)
def weigh_block(
    query: Any, first: int, rows: int, group: int, lane: int, stop: int, visible_first: int, keys: int,
    scores: Any, row_max: Any, row_sum: Any, acc: Any,
) -> None:  # fmt: skip
    """scores[r, :64] = weights of a block's lanes for query rows first .. rows - 1, relative to row_max afterwards.

    Row r sees lanes `lane` .. min(stop, visible_first + r // group) - 1, at least one.
    """
    depth, at = query.shape[1], address(scores) + 4 * first * SCORE_STRIDE
    for r in range(first, rows):
        for j in range(BLOCK):
            scores[r, j] = Float(0)
    fma_rows(rows - first, address(query) + 4 * first * depth, depth, keys, at, SCORE_STRIDE, depth, BLOCK)
    for r in range(first, rows):
        for j in range(lane):
            scores[r, j] = _MINUS_INFINITY
        softmax_block(scores, r, min(stop, visible_first + r // group), row_max, row_sum, acc, acc.shape[1])


@numba.njit(nogil=True)
def add_values(
    scores: Any, first: int, rows: int, group: int, lane: int, stop: int, visible_first: int, values: int, acc: Any
) -> None:
    """acc += weights @ values for the lanes that `weigh_block` met; what a row does not see is left out."""
    width = acc.shape[1]
    weights, values, out = address(scores) + 4 * lane, values + 4 * lane * width, address(acc)
    if visible_first + first // group >= stop:
        at = weights + 4 * first * SCORE_STRIDE
        fma_rows(rows - first, at, SCORE_STRIDE, values, out + 4 * first * width, width, stop - lane, width)
        return
    for r in range(first, rows, group):
        visible = min(stop, visible_first + r // group) - lane
        at = weights + 4 * r * SCORE_STRIDE
        fma_rows(group, at, SCORE_STRIDE, values, out + 4 * r * width, width, visible, width)


@numba.njit(nogil=True)
def keep_weights(scores: Any, first: int, rows: int, row_max: Any, weights: Any, highest: Any) -> None:
    """Copies a block's weights into weights: [rows, 64], and the maxima that they are relative to."""
    for r in range(first, rows):
        highest[r] = row_max[r]
        for j in range(BLOCK):
            weights[r, j] = scores[r, j]


@numba.njit(nogil=True)
def gather_block(weights: Any, factors: Any, first: int, rows: int, group: int, take_highest: bool, found: Any) -> None:
    """Adds a block's kept weights, times one factor a row, to found: [group, 64]."""
    for r in range(first, rows):
        line, factor, columns = weights[r], factors[r], found[r % group]
        if take_highest:
            for j in range(BLOCK):
                share = line[j] * factor
                columns[j] = share if share > columns[j] else columns[j]
        else:
            for j in range(BLOCK):
                columns[j] += line[j] * factor


@numba.njit(nogil=True)
def gather_slots(
    row_max: Any, row_sum: Any, row_weights: Any, group: int, weights: Any, highest: Any, firsts: Any,
    take_highest: bool, found: Any,
) -> None:  # fmt: skip
    """Adds the kept weights of all slots to `found` as shares of the softmax over the blocks met so far."""
    rows = row_max.shape[0]
    share = np.empty(rows, np.float32)
    factors = np.empty(rows, np.float32)
    for r in range(rows):
        share[r] = row_weights[r // group] / lane_total(row_sum, r)
    for slot in range(weights.shape[0]):
        for r in range(firsts[slot], rows):
            factors[r] = exp(highest[slot, r] - row_max[r]) * share[r]
        gather_block(weights[slot], factors, firsts[slot], rows, group, take_highest, found[slot])


@numba.njit(nogil=True)
def gather_tile(
    query: Any, group: int, row_weights: Any, table: Any, keys_at: int, values_at: int, blocks: Any, seen: int,
    first_visible: int, take_highest: bool, weights: Any, found: Any, acc: Any, row_sum: Any,
) -> None:  # fmt: skip
    """One tile of rows of one KV head: its columns into `found`, and its attention into `acc` if that has columns.

    query: [rows, D], scaled; row r sees entries below first_visible + r // group. The first `seen` blocks make up the
    softmax of the columns. weights: scratch [slots, rows, 64]. found: [slots, group, 64]. acc: [rows, width or 0] and
    row_sum: [rows, 64] come out as weighted values and weights.
    """
    rows = query.shape[0]
    scores = np.empty((rows, SCORE_STRIDE), np.float32)
    row_max = np.full(rows, LOWEST, np.float32)
    highest = np.empty((weights.shape[0], rows), np.float32)
    firsts = np.full(weights.shape[0], rows)
    row_sum[:] = Float(0)
    acc[:] = Float(0)
    for b in range(blocks.shape[0]):
        page, lane, stop, slot = blocks[b, PAGE], blocks[b, LANE], blocks[b, STOP], blocks[b, SLOT]
        first = first_row_beyond(page * BLOCK + lane, first_visible, rows, group)
        if first < rows:
            visible = first_visible - page * BLOCK
            weigh_block(
                query, first, rows, group, lane, stop, visible, table[page] + keys_at, scores, row_max, row_sum, acc
            )
            if slot >= 0:
                firsts[slot] = first
                keep_weights(scores, first, rows, row_max, weights[slot], highest[slot])
            if acc.shape[1]:
                add_values(scores, first, rows, group, lane, stop, visible, table[page] + values_at, acc)
        if b == seen - 1:
            gather_slots(row_max, row_sum, row_weights, group, weights, highest, firsts, take_highest, found)


@numba.njit(nogil=True)
def attend_split(
    q: Any, row_weights: Any, table: Any, keys_at: int, values_at: int, head_bytes: int, width: int, blocks: Any,
    seen: int, first_visible: int, take_highest: bool, parts: Any, out: Any, task: int,
) -> None:  # fmt: skip
    """`attend_columns` for one KV head and every SPLITS-th tile of rows, so that no bit depends on the threads."""
    n, _, depth = q.shape
    slots, group = parts.shape[2], parts.shape[3]
    tokens = max(1, TILE_ROWS // group)
    tiles = (n + tokens - 1) // tokens
    scale = Float(1.0 / np.sqrt(depth))
    head, split = task // SPLITS, task % SPLITS
    query = np.empty((tokens * group, depth), np.float32)
    weights = np.empty((slots, tokens * group, BLOCK), np.float32)
    acc = np.empty((tokens * group, width if out.shape[0] else 0), np.float32)
    row_sum = np.empty((tokens * group, BLOCK), np.float32)
    for tile in range(split, tiles, SPLITS):
        start = tile * tokens
        count = min(tokens, n - start)
        rows = count * group
        head_rows(q[start : start + count], head, group, scale, query)
        gather_tile(
            query[:rows], group, row_weights[start : start + count], table, keys_at + head * head_bytes,
            values_at + head * head_bytes, blocks, seen, first_visible + start, take_highest, weights,
            parts[head, split], acc[:rows], row_sum[:rows],
        )  # fmt: skip
        if out.shape[0]:
            for r in range(rows):
                total = lane_total(row_sum, r)
                for d in range(depth):
                    out[start + r // group, head, r % group, d] = acc[r, d] / total


@numba.njit(nogil=True, cache=True)
def attend_columns(
    q: Any, row_weights: Any, table: Any, keys_at: int, values_at: int, head_bytes: int, width: int, blocks: Any,
    seen: int, first_visible: int, take_highest: bool, parts: Any, out: Any,
) -> None:  # fmt: skip
    """Softmax shares of q: [n, H, D] over the first `seen` blocks, times row_weights: [n], gathered by column.

    parts: [Hk, SPLITS, slots, H / Hk, 64], zeros at first. out: [n, Hk, H / Hk, D], attention over all blocks, or
    [0, ...] where it is not wanted. blocks: [blocks, BLOCK_FIELDS]; row i sees entries below first_visible + i, one of
    the first `seen` blocks at least.
    """
    arguments = (
        q, row_weights, table, keys_at, values_at, head_bytes, width, blocks, seen, first_visible, take_highest, parts,
        out,
    )  # fmt: skip
    spread(parts.shape[0] * SPLITS, attend_split, arguments)
