"""Attention over key blocks: one code path for 1 or many query rows, exact for any grouping of rows.

Keys are taken in blocks of 64 counted from entry 0, each block's keys stored transposed [D, 64] and its values
[64, Dp]. Blocks are combined in ascending order inside a chunk of 4 blocks, chunks in ascending order in the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from vcbench.engine.kernels.cpu.simd import Float, address, exp, fma, fma_rows
from vcbench.engine.kernels.cpu.workers import fetch_add, spread

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
    for j in range(8):
        a, b = line[BLOCK + j], line[BLOCK + 8 + j]
        line[BLOCK + j] = a if a > b else b
    for j in range(4):
        a, b = line[BLOCK + j], line[BLOCK + 4 + j]
        line[BLOCK + j] = a if a > b else b
    highest = row_max[row]
    for j in range(4):
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
    at = address(scores)
    out = address(acc)
    fma_rows(
        rows - first, address(query) + 4 * first * depth, depth, keys, at + first * stride, SCORE_STRIDE,
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
def combine_heads(part_max: Any, part_sum: Any, part_acc: Any, out: Any) -> None:
    """out: [n, Hk, G, D] from the parts of chunks: part_max, part_sum: [chunks, Hk, n * G]; part_acc: [.., width]."""
    chunks, kv_heads, rows, width = part_acc.shape
    group = out.shape[2]
    highest, total, acc = part_max.reshape(-1), part_sum.reshape(-1), part_acc.reshape((-1, width))
    for head in range(kv_heads):
        for row in range(rows):
            target = out[row // group, head, row % group]
            combine_row(highest, total, acc, head * rows + row, kv_heads * rows, chunks, target)


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


ROW, TOKENS, HEAD, HEADS, VISIBLE, TABLE, KEYS, VALUES, SPAN_FIELDS = range(9)
"""Fields of a span: `TOKENS` rows of q from row `ROW` on meet `HEADS` KV heads from `HEAD` on.

The i-th of them sees `VISIBLE` + i entries. The addresses of its pages lie from `TABLE` on; `KEYS` and `VALUES` are the
byte offsets of its first head's keys and values inside a page.
"""


@numba.njit(nogil=True)
def chunks_of(spans: Any, s: int) -> Any:
    """Chunks of entries that a span's rows see."""
    blocks = (spans[s, VISIBLE] + spans[s, TOKENS] - 1 + BLOCK - 1) // BLOCK
    return (blocks + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS


@numba.njit(nogil=True)
def lay_out(spans: Any, group: int, task_at: Any, part_at: Any, head_at: Any) -> int:
    """Where each span's tasks, partial results and heads begin; a task is a chunk of a head. Returns the most rows."""
    most = 0
    for s in range(spans.shape[0]):
        tasks = spans[s, HEADS] * chunks_of(spans, s)
        rows = spans[s, TOKENS] * group
        task_at[s + 1] = task_at[s] + tasks
        part_at[s + 1] = part_at[s] + tasks * rows
        head_at[s + 1] = head_at[s] + spans[s, HEADS]
        most = max(most, rows)
    return most


class Work(NamedTuple):
    """What the threads of one call share. most: rows of a span; the next three: see `lay_out`; then a chunk's results.

    left: [heads], chunks of each that are not done; taken: [1], tasks begun.
    """

    most: int
    task_at: Any
    part_at: Any
    head_at: Any
    part_max: Any
    part_sum: Any
    part_acc: Any
    left: Any
    taken: Any


@numba.njit(nogil=True)
def lay_out_work(spans: Any, group: int, width: int) -> Any:
    """All tasks of spans whose heads have `group` rows a token, none of them begun."""
    count = spans.shape[0]
    task_at = np.zeros(count + 1, np.int64)
    part_at = np.zeros(count + 1, np.int64)
    head_at = np.zeros(count + 1, np.int64)
    most = lay_out(spans, group, task_at, part_at, head_at)
    left = np.empty(head_at[count], np.int64)
    for s in range(count):
        left[head_at[s] : head_at[s + 1]] = chunks_of(spans, s)
    parts = part_at[count]
    return Work(
        most, task_at, part_at, head_at, np.empty(parts, np.float32), np.empty(parts, np.float32),
        np.empty((parts, width), np.float32), left, np.zeros(1, np.int64),
    )  # fmt: skip


@numba.njit(nogil=True)
def take_task(work: Any) -> Any:
    """The next task, or -1 if there is none."""
    task = fetch_add(address(work.taken), 1)
    return task if task < work.task_at[work.task_at.shape[0] - 1] else -1


@numba.njit(nogil=True)
def combine_head(spans: Any, s: int, head: int, work: Any, out: Any) -> None:
    """One head of a span from all of its chunks."""
    group, chunks = out.shape[2], chunks_of(spans, s)
    rows = spans[s, TOKENS] * group
    for r in range(rows):
        target = out[spans[s, ROW] + r // group, spans[s, HEAD] + head, r % group]
        first = work.part_at[s] + head * chunks * rows + r
        combine_row(work.part_max, work.part_sum, work.part_acc, first, rows, chunks, target)


@numba.njit(nogil=True)
def attend_chunk(
    query: Any, group: int, table: Any, chunk: int, blocks: int, keys_at: int, values_at: int, first_visible: int,
    scores: Any, row_sum: Any, row_max: Any, row_sums: Any, acc: Any,
) -> None:  # fmt: skip
    """One KV head's query rows over one chunk of pages. query: [rows, D], scaled; acc: [rows, width].

    scores: [rows, SCORE_STRIDE] and row_sum: [rows, 64] are scratch. row_max, row_sums: [rows].
    """
    rows, width, depth = acc.shape[0], acc.shape[1], query.shape[1]
    row_sum[:] = Float(0)
    row_max[:] = LOWEST
    acc[:] = Float(0)
    for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
        first = first_row_beyond(block * BLOCK, first_visible, rows, group)
        block_step(
            query, first, rows, group, first_visible - block * BLOCK, table[block] + keys_at,
            table[block] + values_at, depth, width, scores, row_max, row_sum, acc,
        )  # fmt: skip
    for r in range(rows):
        row_sums[r] = lane_total(row_sum, r)


@numba.njit(nogil=True)
def attend_tasks(
    q: Any, spans: Any, tables: Any, shift: int, head_bytes: int, out: Any, work: Any, _worker: int
) -> None:
    """`attend_pages` for the tasks that one thread takes."""
    group, depth, most = out.shape[2], q.shape[2], work.most
    scale = Float(1.0 / np.sqrt(depth))
    query = np.empty((most, depth), np.float32)
    scores = np.empty((most, SCORE_STRIDE), np.float32)
    row_sum = np.empty((most, BLOCK), np.float32)
    task = take_task(work)
    while task >= 0:
        s = owner(work.task_at, task)
        chunks, mine = chunks_of(spans, s), task - work.task_at[s]
        head, tokens, first_row, visible = mine // chunks, spans[s, TOKENS], spans[s, ROW], spans[s, VISIBLE]
        rows = tokens * group
        parts = slice(work.part_at[s] + mine * rows, work.part_at[s] + (mine + 1) * rows)
        head_rows(q[first_row : first_row + tokens], spans[s, HEAD] + head, group, scale, query)
        attend_chunk(
            query[:rows], group, tables[spans[s, TABLE] :], mine % chunks,
            (visible + tokens - 1 + BLOCK - 1) // BLOCK, shift + spans[s, KEYS] + head * head_bytes,
            shift + spans[s, VALUES] + head * head_bytes, visible, scores, row_sum[:rows], work.part_max[parts],
            work.part_sum[parts], work.part_acc[parts],
        )  # fmt: skip
        if fetch_add(address(work.left[work.head_at[s] + head :]), -1) == 1:
            combine_head(spans, s, head, work, out)
        task = take_task(work)


@numba.njit(nogil=True, cache=True)
def attend_pages(
    workers: int, q: Any, spans: Any, tables: Any, shift: int, head_bytes: int, width: int, out: Any
) -> None:
    """Attention of a ragged batch over paged float32 entries, by `workers` threads.

    q: [n, H, D]; spans: [S, SPAN_FIELDS], each row and head in one of them; tables: addresses (int64) of pages of 64
    entries. shift: bytes from a page's first layer to this one; head_bytes: bytes between KV heads.
    out: [n, Hk, H / Hk, D].
    """
    work = lay_out_work(spans, out.shape[2], width)
    spread(workers, attend_tasks, (q, spans, tables, shift, head_bytes, out, work))
