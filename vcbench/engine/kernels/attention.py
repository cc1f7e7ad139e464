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
def combine_row(part_max: Any, part_sum: Any, part_acc: Any, head: int, row: int, out: Any) -> None:
    """out[:] = the attention of one row from its chunks, combined in ascending order."""
    highest = LOWEST
    for c in range(part_max.shape[1]):
        highest = max(highest, part_max[head, c, row])
    total = Float(0)
    size = out.shape[0]
    for d in range(size):
        out[d] = Float(0)
    for c in range(part_max.shape[1]):
        if part_sum[head, c, row] == Float(0):
            continue
        weight = exp(part_max[head, c, row] - highest)
        total = fma(part_sum[head, c, row], weight, total)
        for d in range(size):
            out[d] = fma(part_acc[head, c, row, d], weight, out[d])
    for d in range(size):
        out[d] /= total


@numba.njit(nogil=True)
def first_row_beyond(entry: int, first_visible: int, rows: int, group: int) -> int:
    """The first row that sees `entry`, when row r sees first_visible + r // group entries."""
    if first_visible > entry:
        return 0
    return min(rows, (entry - first_visible + 1) * group)


@numba.njit(parallel=True, nogil=True, cache=True)
def attend_pages(
    q: Any, table: Any, keys_at: int, values_at: int, head_bytes: int, first_visible: int, width: int, out: Any
) -> None:
    """Attention of query rows over paged float32 entries.

    q: [n, H, D]. table: int64 addresses of pages of 64 entries. keys_at, values_at: byte offsets of this layer inside a
    page; head_bytes: bytes between KV heads. Token i sees first_visible + i entries. out: [n, Hk, H / Hk, D].
    """
    n, heads, depth = q.shape
    kv_heads = out.shape[1]
    group = heads // kv_heads
    rows = n * group
    scale = Float(1.0 / np.sqrt(depth))
    blocks = (first_visible + n - 1 + BLOCK - 1) // BLOCK
    chunks = (blocks + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS
    part_max = np.empty((kv_heads, chunks, rows), np.float32)
    part_sum = np.empty((kv_heads, chunks, rows), np.float32)
    part_acc = np.empty((kv_heads, chunks, rows, width), np.float32)
    for task in numba.prange(kv_heads * chunks):
        head = task // chunks
        chunk = task % chunks
        query = np.empty((rows, depth), np.float32)
        head_rows(q, head, group, scale, query)
        scores = np.empty((rows, SCORE_STRIDE), np.float32)
        row_sum = np.zeros((rows, BLOCK), np.float32)
        row_max = part_max[head, chunk]
        row_max[:] = LOWEST
        acc = part_acc[head, chunk]
        acc[:] = Float(0)
        for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
            first = first_row_beyond(block * BLOCK, first_visible, rows, group)
            page = table[block] + head * head_bytes
            block_step(
                query, first, rows, group, first_visible - block * BLOCK, page + keys_at, page + values_at,
                depth, width, scores, row_max, row_sum, acc,
            )  # fmt: skip
        for r in range(rows):
            part_sum[head, chunk, r] = lane_total(row_sum, r)
    for task in numba.prange(kv_heads * rows):
        head = task // rows
        row = task % rows
        combine_row(part_max, part_sum, part_acc, head, row, out[row // group, head, row % group])
