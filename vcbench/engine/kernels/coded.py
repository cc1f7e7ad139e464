"""Attention of a ragged batch over packed codes and exact tails, codes being read where they are multiplied.

Where a group is a token, its step scales the score (keys) or the weight (values); where it is some tokens of a channel,
the steps scale the query. No entry is ever decoded to memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from vcbench.engine.kernels.attention import (
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
    lay_out,
    owner,
    softmax_block,
)
from vcbench.engine.kernels.codes import bits_of, code_rows
from vcbench.engine.kernels.folding import folded_line, line_sum, scaled_line, unfolded_line
from vcbench.engine.kernels.simd import LANES, Float, fma_rows
from vcbench.engine.kernels.tasks import fetch_add

FIRST_BLOCK, KEYS_DONE, VALUES_DONE = range(SPAN_FIELDS, SPAN_FIELDS + 3)
"""Further fields of a span: the block of its first page, and how many tokens' keys and values are codes."""

K_CODES, K_STEPS, K_MINIMA, V_CODES, V_STEPS, V_MINIMA, CODED_FIELDS = range(FIRST_BLOCK + 3, FIRST_BLOCK + 22, 3)
"""Address of the first layer's codes, followed by the bytes from layer to layer and from head to head."""


class KeyCoding(NamedTuple):
    """form: see `codes`. by_channel: groups are `group` tokens of a channel, a multiple of 16, else a token's head.

    scaled, centred: whether groups have steps, and minima. unit: what a level of 1 stands for. levels: at least 16.
    """

    form: int
    by_channel: bool
    group: int
    scaled: bool
    centred: bool
    unit: Any
    levels: Any


class ValueCoding(NamedTuple):
    """As `KeyCoding`; groups are `group` channels of a token, a multiple of 16 or all of them, `groups` a token."""

    form: int
    group: int
    groups: int
    scaled: bool
    centred: bool
    unit: Any
    levels: Any


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
def middle_of(form: int) -> Any:
    """The code that stands for level 0 where levels count steps."""
    return Float(1 << (bits_of(form) - 1))


@numba.njit(nogil=True)
def scores_by_channel(
    coding: Any, query: Any, codes: int, steps: int, minima: int, block: int, ready: int, folded: Any, scores: Any
) -> None:
    """scores[r, j] = query[r] . key j of the first `ready` tokens of a block. folded: scratch [groups * rows, D]."""
    rows, depth = query.shape
    inside = min(coding.group, BLOCK)
    query_at, folded_at = query.ctypes.data, folded.ctypes.data
    groups = (ready + inside - 1) // inside
    for g in range(groups):
        row = (block * BLOCK + g * inside) // coding.group
        at = 2 * row * depth
        for r in range(rows):
            source, target = query_at + 4 * r * depth, folded_at + 4 * (g * rows + r) * depth
            offset = Float(0)
            if coding.centred:
                offset = folded_line(1, source, steps + at, minima + at, middle_of(coding.form), depth, target)
            else:
                scaled_line(1, source, steps + at, depth, target)
            for start in range(g * inside, (g + 1) * inside, LANES):
                for j in range(LANES):
                    scores[r, start + j] = offset
    line = BLOCK * bits_of(coding.form) // 8
    code_rows(
        coding.form, rows, folded.ctypes.data, depth, rows * depth, inside, codes + block * depth * line, line,
        coding.levels.ctypes.data, scores.ctypes.data, SCORE_STRIDE, depth, BLOCK,
    )  # fmt: skip


@numba.njit(nogil=True)
def scores_by_token(
    coding: Any, query: Any, totals: Any, codes: int, steps: int, minima: int, block: int, scores: Any
) -> None:
    """As `scores_by_channel`. query: [rows, D] in units; totals: [rows], the sum of each."""
    rows, depth = query.shape
    for r in range(rows):
        for j in range(BLOCK):
            scores[r, j] = Float(0)
    line = BLOCK * bits_of(coding.form) // 8
    code_rows(
        coding.form, rows, query.ctypes.data, depth, 0, BLOCK, codes + block * depth * line, line,
        coding.levels.ctypes.data, scores.ctypes.data, SCORE_STRIDE, depth, BLOCK,
    )  # fmt: skip
    at = 2 * block * BLOCK
    for r in range(rows):
        target = scores.ctypes.data + 4 * r * SCORE_STRIDE
        if coding.centred:
            unfolded_line(target, steps + at, minima + at, middle_of(coding.form), totals[r], BLOCK)
        elif coding.scaled:
            scaled_line(1, target, steps + at, BLOCK, target)


@numba.njit(nogil=True)
def add_values(coding: Any, weights: Any, rows: int, place: Any, block: int, ready: int, folded: Any, acc: Any) -> None:
    """acc[r] += sum of weights[r, j] * value j over the first `ready` tokens. folded: scratch [groups * rows, 64]."""
    (codes, steps, minima), width = place, acc.shape[1]
    line = width * bits_of(coding.form) // 8
    at = codes + block * BLOCK * line
    levels, group = coding.levels.ctypes.data, coding.group if coding.groups > 1 else width
    if not coding.scaled:
        for r in range(rows):
            for j in range(ready):
                folded[r, j] = weights[r, j] * coding.unit
        code_rows(
            coding.form, rows, folded.ctypes.data, BLOCK, 0, group, at, line, levels, acc.ctypes.data, width, ready,
            width,
        )  # fmt: skip
        return
    stride, first = coding.groups, 2 * block * BLOCK * coding.groups
    weights_at, folded_at = weights.ctypes.data, folded.ctypes.data
    for g in range(coding.groups):
        for r in range(rows):
            source, target = weights_at + 4 * r * weights.shape[1], folded_at + 4 * (g * rows + r) * BLOCK
            if not coding.centred:
                scaled_line(stride, source, steps + first + 2 * g, ready, target)
                continue
            offset = folded_line(
                stride, source, steps + first + 2 * g, minima + first + 2 * g, middle_of(coding.form), ready, target
            )
            for start in range(g * group, (g + 1) * group, LANES):
                for d in range(LANES):
                    acc[r, start + d] += offset
    code_rows(
        coding.form, rows, folded.ctypes.data, BLOCK, rows * BLOCK, group, at, line, levels, acc.ctypes.data, width,
        ready, width,
    )  # fmt: skip


@numba.njit(nogil=True)
def add_exact_values(
    weights: Any, rows: int, group: int, values: int, skipped: int, visible_first: int, acc: Any
) -> None:
    """acc[r] += the weighted values of a page from entry `skipped` on; row r sees visible_first + r // group of it."""
    at, stride, target = weights.ctypes.data + 4 * skipped, 4 * weights.shape[1], acc.ctypes.data
    width = acc.shape[1]
    start = values + 4 * width * skipped
    if visible_first >= BLOCK:
        fma_rows(rows, at, weights.shape[1], start, target, width, BLOCK - skipped, width)
        return
    for r in range(0, rows, group):
        visible = min(BLOCK, visible_first + r // group) - skipped
        if visible > 0:
            fma_rows(group, at + r * stride, weights.shape[1], start, target + 4 * r * width, width, visible, width)


@numba.njit(nogil=True)
def add_exact_scores(query: Any, keys: int, ready: int, scratch: Any, scores: Any) -> None:
    """scores[r, j] = query[r] . key j of a page, from entry `ready` on. scratch: as scores."""
    rows, depth = query.shape
    for r in range(rows):
        for j in range(BLOCK):
            scratch[r, j] = Float(0)
    fma_rows(rows, query.ctypes.data, depth, keys, scratch.ctypes.data, SCORE_STRIDE, depth, BLOCK)
    for r in range(rows):
        for j in range(ready, BLOCK):
            scores[r, j] = scratch[r, j]


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
        scratch.totals[r] = line_sum(scratch.query[r].ctypes.data, depth)
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


@numba.njit(parallel=True, nogil=True, cache=True)
def attend_codes(
    workers: int, q: Any, spans: Any, tables: Any, layer: int, shift: int, head_bytes: int, keys: Any, values: Any,
    width: int, out: Any,
) -> None:  # fmt: skip
    """Attention of a ragged batch over one layer of codes and exact tails, by `workers` threads.

    q, tables, shift, head_bytes, out: as in `attention.attend_pages`; spans: [S, CODED_FIELDS], of whole layers; a
    span's rows see all tokens that are codes. keys: KeyCoding; values: ValueCoding.
    """
    count, group = spans.shape[0], out.shape[2]
    task_at = np.zeros(count + 1, np.int64)
    part_at = np.zeros(count + 1, np.int64)
    head_at = np.zeros(count + 1, np.int64)
    most = lay_out(spans, group, task_at, part_at, head_at)
    part_max = np.empty(part_at[count], np.float32)
    part_sum = np.empty(part_at[count], np.float32)
    part_acc = np.empty((part_at[count], width), np.float32)
    left = np.empty(head_at[count], np.int64)
    for s in range(count):
        left[head_at[s] : head_at[s + 1]] = chunks_of(spans, s)
    taken = np.zeros(1, np.int64)
    for _ in numba.prange(workers):
        scratch = make_scratch(most, q.shape[2], keys, values)
        while True:
            task = fetch_add(taken.ctypes.data, 1)
            if task >= task_at[count]:
                break
            s = owner(task_at, task)
            chunks, mine = chunks_of(spans, s), task - task_at[s]
            head, rows = mine // chunks, spans[s, TOKENS] * group
            parts = slice(part_at[s] + mine * rows, part_at[s] + (mine + 1) * rows)
            attend_coded_chunk(
                q, spans, s, head, mine % chunks, group, tables, layer, shift + head * head_bytes, keys, values,
                scratch, part_max[parts], part_sum[parts], part_acc[parts],
            )  # fmt: skip
            if fetch_add(left[head_at[s] + head :].ctypes.data, -1) == 1:
                combine_head(spans, s, head, part_at[s], part_max, part_sum, part_acc, out)
