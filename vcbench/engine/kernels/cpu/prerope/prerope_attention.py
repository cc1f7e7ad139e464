"""Attention of a ragged batch over codes of keys from before their rotary embedding.

A block's keys are decoded into a tile in cache, without their embedding, which is done in registers where they meet the
queries (see `rope_scores`). Values are read as in `coded_attention`. Some numbers of a tile may be exact, and some
tokens.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.cpu.codes.coded_attention import (
    CODED_FIELDS,
    FIRST_BLOCK,
    KEYS_DONE,
    V_CODES,
    VALUES_DONE,
    head_place,
)
from vcbench.engine.kernels.cpu.codes.exceptions import (
    EXCEPTION_FIELDS,
    add_key_outliers,
)
from vcbench.engine.kernels.cpu.exact.attention import (
    BLOCK,
    CHUNK_BLOCKS,
    HEADS,
    KEYS,
    LOWEST,
    ROW,
    TABLE,
    TOKENS,
    VALUES,
    VISIBLE,
    block_step,
    chunks_of,
    combine_row,
    first_row_beyond,
    head_rows,
    lane_total,
    lay_out,
    owner,
)
from vcbench.engine.kernels.cpu.prerope.prerope_blocks import (
    channel_tables,
    head_step,
    make_plan,
    make_scratch,
    unit_tiles,
)
from vcbench.engine.kernels.cpu.simd import Float, address
from vcbench.engine.kernels.cpu.work_queue import fetch_add

REQUEST, UNROTATED_FIELDS = CODED_FIELDS, CODED_FIELDS + 1
"""A further field of a span: its row of the exceptions. Its `HEADS` are units of `KeyCoding.together` heads."""


@numba.njit(nogil=True)
def attend_unit_chunk(
    q: Any, spans: Any, s: int, unit: int, chunk: int, group: int, tables: Any, layer: int, shift: int, head_bytes: int,
    keys: Any, values: Any, exceptions: int, scratch: Any, row_max: Any, row_sums: Any, acc: Any,
) -> None:  # fmt: skip
    """A unit's rows of a span over one chunk, head after head. acc: [together * rows, width]."""
    together, tokens, visible = keys.together, spans[s, TOKENS], spans[s, VISIBLE]
    rows, first, scale = tokens * group, spans[s, ROW], Float(1.0 / np.sqrt(q.shape[2]))
    query, scores, other, folded, row_sum = (
        scratch.query,
        scratch.scores,
        scratch.other,
        scratch.folded,
        scratch.row_sum,
    )
    acc[:], row_max[:], row_sum[:, :rows] = Float(0), LOWEST, Float(0)
    for inside in range(together):
        head_rows(q[first : first + tokens], unit * together + inside, group, scale, query[inside])
    plan, done = make_plan(keys, spans, s, layer, unit, rows, scratch), spans[s, KEYS_DONE]
    if done and not keys.transformed:
        channel_tables(keys, plan, scratch.tables)
    blocks = (visible + tokens - 1 + BLOCK - 1) // BLOCK
    for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
        start, page, tile_index = block * BLOCK, shift, (block * spans[s, HEADS] + unit) * together
        if block >= spans[s, FIRST_BLOCK]:
            page += tables[spans[s, TABLE] + block - spans[s, FIRST_BLOCK]]
        ready_keys = min(BLOCK, max(0, done - start))
        ready_values = min(BLOCK, max(0, spans[s, VALUES_DONE] - start))
        if ready_keys:
            unit_tiles(plan, block)
            add_key_outliers(exceptions, tile_index, plan.tiles)
        for inside in range(together):
            head, part = unit * together + inside, slice(inside * rows, (inside + 1) * rows)
            keys_page, values_page = (
                page + head * head_bytes + spans[s, KEYS],
                page + head * head_bytes + spans[s, VALUES],
            )
            if ready_keys or ready_values:
                head_step(
                    plan, inside, head, tile_index + inside, block, keys_page, values_page, group, visible - start,
                    ready_keys, ready_values, values, head_place(spans, s, V_CODES, layer, head), exceptions,
                    query[inside, :rows], scores, other, folded, row_max[part], row_sum[inside], acc[part],
                )  # fmt: skip
            else:
                block_step(
                    query[inside, :rows], first_row_beyond(start, visible, rows, group), rows, group, visible - start,
                    keys_page, values_page, plan.depth, acc.shape[1], scores, row_max[part], row_sum[inside], acc[part],
                )  # fmt: skip
    for inside in range(together):
        for r in range(rows):
            row_sums[inside * rows + r] = lane_total(row_sum[inside], r)


@numba.njit(nogil=True)
def combine_unit(
    spans: Any, s: int, unit: int, together: int, first: int, part_max: Any, part_sum: Any, part_acc: Any, out: Any
) -> None:
    """A unit of a span from all of its chunks, whose parts lie from `first` on."""
    group, chunks = out.shape[2], chunks_of(spans, s)
    rows = spans[s, TOKENS] * group
    for inside in range(together):
        for r in range(rows):
            target = out[spans[s, ROW] + r // group, unit * together + inside, r % group]
            combine_row(part_max, part_sum, part_acc, first + inside * rows + r, together * rows, chunks, target)


@numba.njit(parallel=True, nogil=True, cache=True)
def attend_unrotated(
    workers: int, q: Any, spans: Any, tables: Any, layer: int, shift: int, head_bytes: int, keys: Any, values: Any,
    exceptions: Any, width: int, out: Any,
) -> None:  # fmt: skip
    """Attention of a ragged batch over one layer, by `workers` threads.

    q, tables, shift, head_bytes, out: as in `attention.attend_pages`; spans: [S, UNROTATED_FIELDS]; keys:
    `prerope_blocks.KeyCoding`; values: `coded_blocks.ValueCoding`; exceptions: [requests, EXCEPTION_FIELDS]. All rows
    of a span see all its codes.
    """
    count, group, together = spans.shape[0], out.shape[2], keys.together
    task_at = np.zeros(count + 1, np.int64)
    part_at = np.zeros(count + 1, np.int64)
    unit_at = np.zeros(count + 1, np.int64)
    most = lay_out(spans, group * together, task_at, part_at, unit_at) // together
    part_max = np.empty(part_at[count], np.float32)
    part_sum = np.empty(part_at[count], np.float32)
    part_acc = np.empty((part_at[count], width), np.float32)
    left = np.empty(unit_at[count], np.int64)
    for s in range(count):
        left[unit_at[s] : unit_at[s + 1]] = chunks_of(spans, s)
    taken = np.zeros(1, np.int64)
    for _ in numba.prange(workers):
        scratch = make_scratch(most, q.shape[2], keys, values)
        while True:
            task = fetch_add(address(taken), 1)
            if task >= task_at[count]:
                break
            s = owner(task_at, task)
            chunks, mine = chunks_of(spans, s), task - task_at[s]
            unit, rows = mine // chunks, spans[s, TOKENS] * group * together
            parts = slice(part_at[s] + mine * rows, part_at[s] + (mine + 1) * rows)
            attend_unit_chunk(
                q, spans, s, unit, mine % chunks, group, tables, layer, shift, head_bytes, keys, values,
                address(exceptions) + 8 * EXCEPTION_FIELDS * spans[s, REQUEST], scratch, part_max[parts],
                part_sum[parts], part_acc[parts],
            )  # fmt: skip
            if fetch_add(address(left[unit_at[s] + unit :]), -1) == 1:
                first = part_at[s] + unit * chunks * rows
                combine_unit(spans, s, unit, together, first, part_max, part_sum, part_acc, out)
