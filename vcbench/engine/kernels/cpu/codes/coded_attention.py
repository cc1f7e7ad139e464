"""Attention of a ragged batch over packed codes and exact tails, codes being read where they are multiplied.

Entries may be stored rotated by an orthogonal matrix: new entries and queries are then rotated as they come in, and
each head's result is rotated back, all of it inside the one call that a layer takes anyway.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from vcbench.engine.kernels.cpu.codes.coded_blocks import (
    KeyCoding,
    ValueCoding,
    add_exact_scores,
    add_exact_values,
    add_values,
    scores_by_channel,
    scores_by_token,
)
from vcbench.engine.kernels.cpu.codes.folding import line_sum
from vcbench.engine.kernels.cpu.exact.attention import (
    BLOCK,
    CHUNK_BLOCKS,
    HEAD,
    KEYS,
    LOWEST,
    ROW,
    SCORE_STRIDE,
    SPAN_FIELDS,
    TABLE,
    TOKENS,
    VALUES,
    VISIBLE,
    block_step,
    chunks_of,
    combine_head,
    first_row_beyond,
    head_rows,
    lane_total,
    lay_out_work,
    owner,
    softmax_block,
    take_task,
)
from vcbench.engine.kernels.cpu.exact.pages import write_rows
from vcbench.engine.kernels.cpu.matmul import linear_alone
from vcbench.engine.kernels.cpu.simd import Float, address
from vcbench.engine.kernels.cpu.workers import fetch_add, spread

FIRST_BLOCK, KEYS_DONE, VALUES_DONE = range(SPAN_FIELDS, SPAN_FIELDS + 3)
"""Further fields of a span: the block of its first page, and how many tokens' keys and values are codes."""

K_CODES, K_STEPS, K_MINIMA, V_CODES, V_STEPS, V_MINIMA, CODED_FIELDS = range(FIRST_BLOCK + 3, FIRST_BLOCK + 22, 3)
"""Address of the first layer's codes, followed by the bytes from layer to layer and from head to head."""


@numba.njit(nogil=True)
def head_address(spans: Any, s: int, field: int, layer: int, head: int) -> Any:
    """Address of a layer's and head's part of what a field is about."""
    return spans[s, field] + layer * spans[s, field + 1] + head * spans[s, field + 2]


@numba.njit(nogil=True)
def head_place(spans: Any, s: int, codes: int, layer: int, head: int) -> Any:
    """Addresses of a head's codes, steps and minima; `codes` is K_CODES or V_CODES."""
    return (
        head_address(spans, s, codes, layer, head),
        head_address(spans, s, codes + K_STEPS - K_CODES, layer, head),
        head_address(spans, s, codes + K_MINIMA - K_CODES, layer, head),
    )


@numba.njit(nogil=True)
def rotate(x: Any, matrix: Any, out: Any) -> None:
    """out = each vector x[..., D] rotated; matrix: [blocks, D, 64] as in `matmul`."""
    size = x.shape[x.ndim - 1]
    linear_alone(x.reshape((-1, size)), matrix, np.empty(0, np.float32), out.reshape((-1, size)))


@numba.njit(nogil=True, cache=True)
def write_rotated(k: Any, v: Any, forth: Any, spans: Any, tables: Any, shift: int, head_bytes: int, width: int) -> None:
    """`pages.write_rows` of k, v rotated by `forth`, or as they are where that is empty."""
    if forth.size == 0:
        write_rows(k, v, spans, tables, shift, head_bytes, width)
        return
    rotated_k, rotated_v = np.empty_like(k), np.empty_like(v)
    rotate(k, forth, rotated_k)
    rotate(v, forth, rotated_v)
    write_rows(rotated_k, rotated_v, spans, tables, shift, head_bytes, width)


@numba.njit(nogil=True)
def rotated_queries(q: Any, spans: Any, forth: Any) -> Any:
    """q: [n, H, D] with the rows of these spans rotated; q itself where `forth` is empty."""
    if forth.size == 0:
        return q
    rotated = np.empty_like(q)
    for s in range(spans.shape[0]):
        first, last = spans[s, ROW], spans[s, ROW] + spans[s, TOKENS]
        rotate(q[first:last], forth, rotated[first:last])
    return rotated


@numba.njit(nogil=True)
def rotate_back(spans: Any, s: int, head: int, back: Any, out: Any) -> None:
    """Turns a span's results of one head back in place; nothing where `back` is empty."""
    if back.size:
        for row in range(spans[s, ROW], spans[s, ROW] + spans[s, TOKENS]):
            result = out[row, spans[s, HEAD] + head]
            rotate(result.copy(), back, result)


class Scratch(NamedTuple):
    """A thread's working memory, for spans of up to R rows.

    query, in_units: [R, D]; totals: [R], each query's sum; folded_query: [groups * R, D]; folded_weights: [groups * R,
    64]; scores, other: [R, SCORE_STRIDE]; row_sum: [R, 64].
    """

    query: Any
    in_units: Any
    totals: Any
    folded_query: Any
    folded_weights: Any
    scores: Any
    other: Any
    row_sum: Any


@numba.njit(nogil=True)
def make_scratch(rows: int, depth: int, keys: Any, values: Any) -> Any:
    """Working memory, not initialised."""
    key_groups = (BLOCK + keys.group - 1) // keys.group if keys.by_channel else 1
    return Scratch(
        np.empty((rows, depth), np.float32),
        np.empty((rows, depth), np.float32),
        np.empty(rows, np.float32),
        np.empty((key_groups * rows, depth), np.float32),
        np.empty((values.groups * rows, BLOCK), np.float32),
        np.empty((rows, SCORE_STRIDE), np.float32),
        np.empty((rows, SCORE_STRIDE), np.float32),
        np.empty((rows, BLOCK), np.float32),
    )


@numba.njit(nogil=True)
def begin_rows(
    q: Any, spans: Any, s: int, head: int, group: int, unit: float, scratch: Any, row_max: Any, acc: Any
) -> int:
    """Puts a span's query rows of one head into the scratch; returns how many there are."""
    depth = q.shape[2]
    first, rows = spans[s, ROW], spans[s, TOKENS] * group
    scale = Float(1.0 / np.sqrt(depth))
    head_rows(q[first : first + spans[s, TOKENS]], spans[s, HEAD] + head, group, scale, scratch.query)
    for r in range(rows):
        for d in range(depth):
            scratch.in_units[r, d] = scratch.query[r, d] * unit
        scratch.totals[r] = line_sum(address(scratch.query[r]), depth)
    acc[:] = Float(0)
    row_max[:] = LOWEST
    scratch.row_sum[:rows] = Float(0)
    return rows


@numba.njit(nogil=True)
def score_block(keys: Any, place: Any, block: int, ready: int, rows: int, page: int, scratch: Any) -> None:
    """Scores of one block, of whose keys the first `ready` are codes and the others lie at `page`."""
    query = scratch.query[:rows]
    if ready and keys.by_channel:
        scores_by_channel(keys, query, place[0], place[1], place[2], block, ready, scratch.folded_query, scratch.scores)
    elif ready:
        scores_by_token(
            keys, scratch.in_units[:rows], scratch.totals, place[0], place[1], place[2], block, scratch.scores
        )
    if ready < BLOCK:
        add_exact_scores(query, page, ready, scratch.other, scratch.scores)


@numba.njit(nogil=True)
def attend_coded_chunk(
    q: Any, spans: Any, s: int, head: int, chunk: int, group: int, tables: Any, layer: int, shift: int, keys: Any,
    values: Any, scratch: Any, row_max: Any, row_sums: Any, acc: Any,
) -> None:  # fmt: skip
    """One KV head's rows of a span over one chunk; `shift` bytes from a page to this head. acc: [rows, width]."""
    width, visible, scores = acc.shape[1], spans[s, VISIBLE], scratch.scores
    rows = begin_rows(q, spans, s, head, group, keys.unit, scratch, row_max, acc)
    key_place = head_place(spans, s, K_CODES, layer, head)
    value_place = head_place(spans, s, V_CODES, layer, head)
    blocks = (visible + spans[s, TOKENS] - 1 + BLOCK - 1) // BLOCK
    for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
        start, page = block * BLOCK, shift
        if block >= spans[s, FIRST_BLOCK]:
            page += tables[spans[s, TABLE] + block - spans[s, FIRST_BLOCK]]
        ready_keys = min(BLOCK, max(0, spans[s, KEYS_DONE] - start))
        ready_values = min(BLOCK, max(0, spans[s, VALUES_DONE] - start))
        if ready_keys == 0 and ready_values == 0:
            first = first_row_beyond(start, visible, rows, group)
            block_step(
                scratch.query[:rows], first, rows, group, visible - start, page + spans[s, KEYS],
                page + spans[s, VALUES], q.shape[2], width, scores, row_max, scratch.row_sum, acc,
            )  # fmt: skip
            continue
        score_block(keys, key_place, block, ready_keys, rows, page + spans[s, KEYS], scratch)
        for r in range(rows):
            softmax_block(scores, r, min(BLOCK, visible - start + r // group), row_max, scratch.row_sum, acc, width)
        if ready_values:
            add_values(values, scores, rows, value_place, block, ready_values, scratch.folded_weights, acc)
        if ready_values < BLOCK:
            add_exact_values(scores, rows, group, page + spans[s, VALUES], ready_values, visible - start, acc)
    for r in range(rows):
        row_sums[r] = lane_total(scratch.row_sum, r)


@numba.njit(nogil=True)
def attend_coded_tasks(
    q: Any, spans: Any, tables: Any, layer: int, shift: int, head_bytes: int, keys: Any, values: Any, back: Any,
    out: Any, work: Any, _worker: int,
) -> None:  # fmt: skip
    """`attend_codes` for the tasks that one thread takes, of rotated queries."""
    group = out.shape[2]
    scratch = make_scratch(work.most, q.shape[2], keys, values)
    task = take_task(work)
    while task >= 0:
        s = owner(work.task_at, task)
        chunks, mine = chunks_of(spans, s), task - work.task_at[s]
        head, rows = mine // chunks, spans[s, TOKENS] * group
        parts = slice(work.part_at[s] + mine * rows, work.part_at[s] + (mine + 1) * rows)
        attend_coded_chunk(
            q, spans, s, head, mine % chunks, group, tables, layer, shift + head * head_bytes, keys, values, scratch,
            work.part_max[parts], work.part_sum[parts], work.part_acc[parts],
        )  # fmt: skip
        if fetch_add(address(work.left[work.head_at[s] + head :]), -1) == 1:
            combine_head(spans, s, head, work, out)
            rotate_back(spans, s, head, back, out)
        task = take_task(work)


@numba.njit(nogil=True, cache=True)
def attend_codes(
    workers: int, q: Any, spans: Any, tables: Any, layer: int, shift: int, head_bytes: int, key_coding: Any,
    value_coding: Any, forth: Any, back: Any, width: int, out: Any,
) -> None:  # fmt: skip
    """Attention of a ragged batch over one layer of codes and exact tails, by `workers` threads.

    q, tables, shift, head_bytes, out: as in `attention.attend_pages`; spans: [S, CODED_FIELDS], of whole layers; a
    span's rows see all tokens that are codes. key_coding, value_coding: the fields of a KeyCoding and of a ValueCoding
    as plain tuples, which take a tenth of the time to hand over. forth, back: [blocks, D, 64], what queries are rotated
    by and results rotated back by, or empty.
    """
    keys, values = KeyCoding(*key_coding), ValueCoding(*value_coding)
    queries, work = rotated_queries(q, spans, forth), lay_out_work(spans, out.shape[2], width)
    arguments = queries, spans, tables, layer, shift, head_bytes, keys, values, back, out, work
    spread(workers, attend_coded_tasks, arguments)
