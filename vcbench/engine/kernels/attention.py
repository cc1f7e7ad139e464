"""Attention over key blocks: one code path for 1 or many query rows, exact for any grouping of rows.

Keys are taken in blocks of 64 counted from entry 0, each block's keys stored transposed [D, 64] and its values
[64, Dp]. Blocks are combined in ascending order inside a chunk of 4 blocks, chunks in ascending order in the end.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.simd import Float, exp, fma, fma_rows

BLOCK = 64
CHUNK_BLOCKS = 4
LOWEST = Float(-3.0e38)
SCORE_STRIDE = BLOCK + 16
_MINUS_INFINITY = Float(-np.inf)


@numba.njit(nogil=True)
def softmax_block(scores: Any, row: int, visible: int, row_max: Any, row_sum: Any, acc: Any, width: int) -> None:
    """Turns scores[row, :64] into weights and rescales what the row has gathered to the new maximum.

    Entries from `visible` on weigh exactly 0. row_sum: [R, 64], one running sum a lane.
    """
    line = scores[row]
    for j in range(visible, BLOCK):
        line[j] = _MINUS_INFINITY
    for j in range(16):
        a, b, c, d = line[j], line[j + 16], line[j + 32], line[j + 48]
        a = a if a > b else b
        c = c if c > d else d
        line[BLOCK + j] = a if a > c else c
    highest = row_max[row]
    for j in range(16):
        highest = line[BLOCK + j] if line[BLOCK + j] > highest else highest
    sums = row_sum[row]
    if highest != row_max[row]:
        shrink = exp(row_max[row] - highest)
        row_max[row] = highest
        for j in range(BLOCK):
            sums[j] *= shrink
        for d in range(width):
            acc[row, d] *= shrink
    for j in range(BLOCK):
        weight = exp(line[j] - highest)
        line[j] = weight
        sums[j] += weight


@numba.njit(nogil=True)
def block_step(
    query: Any, first: int, rows: int, group: int, visible_first: int, keys: int, values: int,
    depth: int, width: int, scores: Any, row_max: Any, row_sum: Any, acc: Any,
) -> None:  # fmt: skip
    """One key block for query rows first .. rows - 1. Row r sees `visible_first + r // group` entries of the block.

    Values that a row does not see are not even multiplied by 0, so that a NaN among them cannot reach it.
    """
    for r in range(first, rows):
        for j in range(BLOCK):
            scores[r, j] = Float(0)
    stride = 4 * SCORE_STRIDE
    at = scores.ctypes.data
    out = acc.ctypes.data
    fma_rows(
        rows - first, query.ctypes.data + 4 * first * depth, depth, keys, at + first * stride, SCORE_STRIDE,
        depth, BLOCK,
    )  # fmt: skip
    for r in range(first, rows):
        softmax_block(scores, r, min(BLOCK, visible_first + r // group), row_max, row_sum, acc, width)
    if visible_first + first // group >= BLOCK:
        fma_rows(rows - first, at + first * stride, SCORE_STRIDE, values, out + 4 * first * width, width, BLOCK, width)
        return
    for r in range(first, rows, group):
        visible = min(BLOCK, visible_first + r // group)
        fma_rows(group, at + r * stride, SCORE_STRIDE, values, out + 4 * r * width, width, visible, width)


@numba.njit(nogil=True)
def head_rows(q: Any, head: int, group: int, scale: float, out: Any) -> None:
    """out[i * group + g] = q[i, head * group + g] * scale. q: [n, H, D]."""
    for i in range(q.shape[0]):
        for g in range(group):
            for d in range(q.shape[2]):
                out[i * group + g, d] = q[i, head * group + g, d] * scale


@numba.njit(nogil=True)
def lane_total(row_sum: Any, row: int) -> Any:
    """Sum of a row's 64 lanes, ascending."""
    total = Float(0)
    for j in range(BLOCK):
        total += row_sum[row, j]
    return total


@numba.njit(nogil=True)
def combine_row(part_max: Any, part_sum: Any, part_acc: Any, first: int, step: int, chunks: int, out: Any) -> None:
    """out[:] = the attention of one row from its chunks, parts first, first + step, ..., combined in this order."""
    highest = LOWEST
    for c in range(chunks):
        highest = max(highest, part_max[first + c * step])
    total = Float(0)
    size = out.shape[0]
    for d in range(size):
        out[d] = Float(0)
    for c in range(chunks):
        part = first + c * step
        if part_sum[part] == Float(0):
            continue
        weight = exp(part_max[part] - highest)
        total = fma(part_sum[part], weight, total)
        for d in range(size):
            out[d] = fma(part_acc[part, d], weight, out[d])
    for d in range(size):
        out[d] /= total


@numba.njit(nogil=True)
def first_row_beyond(entry: int, first_visible: int, rows: int, group: int) -> int:
    """The first row that sees `entry`, when row r sees first_visible + r // group entries."""
    if first_visible > entry:
        return 0
    return min(rows, (entry - first_visible + 1) * group)


@numba.njit(nogil=True)
def owner(starts: Any, index: int) -> Any:
    """The part that an index falls into: the last b with starts[b] <= index."""
    return np.searchsorted(starts, index, side="right") - 1


@numba.njit(nogil=True)
def attend_chunk(
    q: Any, group: int, head: int, table: Any, chunk: int, blocks: int, keys_at: int, values_at: int,
    head_bytes: int, first_visible: int, row_max: Any, row_sums: Any, acc: Any,
) -> None:  # fmt: skip
    """One KV head's query rows over one chunk of pages. q: [n, H, D]; row_max, row_sums: [rows]; acc: [rows, width]."""
    rows, width, depth = acc.shape[0], acc.shape[1], q.shape[2]
    query = np.empty((rows, depth), np.float32)
    head_rows(q, head, group, Float(1.0 / np.sqrt(depth)), query)
    scores = np.empty((rows, SCORE_STRIDE), np.float32)
    row_sum = np.zeros((rows, BLOCK), np.float32)
    row_max[:] = LOWEST
    acc[:] = Float(0)
    for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
        first = first_row_beyond(block * BLOCK, first_visible, rows, group)
        page = table[block] + head * head_bytes
        block_step(
            query, first, rows, group, first_visible - block * BLOCK, page + keys_at, page + values_at, depth, width,
            scores, row_max, row_sum, acc,
        )  # fmt: skip
    for r in range(rows):
        row_sums[r] = lane_total(row_sum, r)


@numba.njit(parallel=True, nogil=True, cache=True)
def attend_pages(
    q: Any, rows_at: Any, tables: Any, table_at: Any, visible: Any, keys_at: int, values_at: int, head_bytes: int,
    width: int, out: Any,
) -> None:  # fmt: skip
    """Attention of a ragged batch over paged float32 entries.

    q: [n, H, D]; request b owns rows rows_at[b] .. rows_at[b + 1] - 1, the i-th of which sees visible[b] + i entries.
    tables: addresses (int64) of pages of 64 entries, those of request b from table_at[b] on. keys_at, values_at: byte
    offsets of this layer inside a page; head_bytes: bytes between KV heads. out: [n, Hk, H / Hk, D].
    """
    requests, kv_heads, group = visible.shape[0], out.shape[1], out.shape[2]
    task_at = np.zeros(requests + 1, np.int64)
    part_at = np.zeros(requests + 1, np.int64)
    for b in range(requests):
        tokens = rows_at[b + 1] - rows_at[b]
        blocks = (visible[b] + tokens - 1 + BLOCK - 1) // BLOCK
        tasks = kv_heads * ((blocks + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS)
        task_at[b + 1] = task_at[b] + tasks
        part_at[b + 1] = part_at[b] + tasks * tokens * group
    part_max = np.empty(part_at[requests], np.float32)
    part_sum = np.empty(part_at[requests], np.float32)
    part_acc = np.empty((part_at[requests], width), np.float32)
    for task in numba.prange(task_at[requests]):
        b = owner(task_at, task)
        chunks = (task_at[b + 1] - task_at[b]) // kv_heads
        mine = task - task_at[b]
        rows = (rows_at[b + 1] - rows_at[b]) * group
        parts = slice(part_at[b] + mine * rows, part_at[b] + (mine + 1) * rows)
        blocks = (visible[b] + rows_at[b + 1] - rows_at[b] - 1 + BLOCK - 1) // BLOCK
        attend_chunk(
            q[rows_at[b] : rows_at[b + 1]], group, mine // chunks, tables[table_at[b] :], mine % chunks, blocks,
            keys_at, values_at, head_bytes, visible[b], part_max[parts], part_sum[parts], part_acc[parts],
        )  # fmt: skip
    for row in range(q.shape[0]):
        b = owner(rows_at, row)
        rows = (rows_at[b + 1] - rows_at[b]) * group
        chunks = (task_at[b + 1] - task_at[b]) // kv_heads
        for head in range(kv_heads):
            for g in range(group):
                first = part_at[b] + head * chunks * rows + (row - rows_at[b]) * group + g
                combine_row(part_max, part_sum, part_acc, first, rows, chunks, out[row, head, g])
