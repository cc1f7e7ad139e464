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
    lay_out_work,
    owner,
    take_task,
)
from vcbench.engine.kernels.cpu.prerope.prerope_blocks import (
    channel_tables,
    head_step,
    make_plan,
    make_scratch,
    unit_tiles,
)
from vcbench.engine.kernels.cpu.simd import Float, address
from vcbench.engine.kernels.cpu.workers import fetch_add, spread

REQUEST, PREROPE_FIELDS = CODED_FIELDS, CODED_FIELDS + 1
"""A further field of a span: its row of the exceptions. Its `HEADS` are units of `KeyCoding.joint_heads` heads."""


@numba.njit(nogil=True)
def attend_unit_chunk(
    q: Any, spans: Any, s: int, unit: int, chunk: int, group: int, tables: Any, layer: int, shift: int, head_bytes: int,
    keys: Any, values: Any, exceptions: int, scratch: Any, row_max: Any, row_sums: Any, acc: Any,
) -> None:  # fmt: skip
    """A unit's rows of a span over one chunk, head after head. acc: [joint_heads * rows, width]."""
    joint_heads, tokens, visible = keys.joint_heads, spans[s, TOKENS], spans[s, VISIBLE]
    rows, first, scale = tokens * group, spans[s, ROW], Float(1.0 / np.sqrt(q.shape[2]))
    query, scores, other, folded, row_sum = (
        scratch.query,
        scratch.scores,
        scratch.other,
        scratch.folded,
        scratch.row_sum,
    )
    acc[:], row_max[:], row_sum[:, :rows] = Float(0), LOWEST, Float(0)
    for inside in range(joint_heads):
        head_rows(q[first : first + tokens], unit * joint_heads + inside, group, scale, query[inside])
    plan, done = make_plan(keys, spans, s, layer, unit, rows, scratch), spans[s, KEYS_DONE]
    if done and not keys.transformed:
        channel_tables(keys, plan, scratch.tables)
    blocks = (visible + tokens - 1 + BLOCK - 1) // BLOCK
    for block in range(chunk * CHUNK_BLOCKS, min(blocks, (chunk + 1) * CHUNK_BLOCKS)):
        start, page, tile_index = block * BLOCK, shift, (block * spans[s, HEADS] + unit) * joint_heads
        if block >= spans[s, FIRST_BLOCK]:
            page += tables[spans[s, TABLE] + block - spans[s, FIRST_BLOCK]]
        ready_keys = min(BLOCK, max(0, done - start))
        ready_values = min(BLOCK, max(0, spans[s, VALUES_DONE] - start))
        if ready_keys:
            unit_tiles(plan, block)
            add_key_outliers(exceptions, tile_index, plan.tiles)
        for inside in range(joint_heads):
            head, part = unit * joint_heads + inside, slice(inside * rows, (inside + 1) * rows)
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
    for inside in range(joint_heads):
        for r in range(rows):
            row_sums[inside * rows + r] = lane_total(row_sum[inside], r)


@numba.njit(nogil=True)
def combine_unit(spans: Any, s: int, unit: int, joint_heads: int, work: Any, out: Any) -> None:
    """A unit of a span from all of its chunks."""
    group, chunks = out.shape[2], chunks_of(spans, s)
    rows = spans[s, TOKENS] * group
    first = work.part_at[s] + unit * chunks * joint_heads * rows
    for inside in range(joint_heads):
        for r in range(rows):
            target = out[spans[s, ROW] + r // group, unit * joint_heads + inside, r % group]
            combine_row(
                work.part_max, work.part_sum, work.part_acc, first + inside * rows + r, joint_heads * rows, chunks,
                target,
            )  # fmt: skip


@numba.njit(nogil=True)
def attend_prerope_tasks(
    q: Any, spans: Any, tables: Any, layer: int, shift: int, head_bytes: int, keys: Any, values: Any, exceptions: Any,
    out: Any, work: Any, _worker: int,
) -> None:  # fmt: skip
    """`attend_prerope` for the tasks that one thread takes."""
    group, joint_heads = out.shape[2], keys.joint_heads
    scratch = make_scratch(work.most // joint_heads, q.shape[2], keys, values)
    task = take_task(work)
    while task >= 0:
        s = owner(work.task_at, task)
        chunks, mine = chunks_of(spans, s), task - work.task_at[s]
        unit, rows = mine // chunks, spans[s, TOKENS] * group * joint_heads
        parts = slice(work.part_at[s] + mine * rows, work.part_at[s] + (mine + 1) * rows)
        attend_unit_chunk(
            q, spans, s, unit, mine % chunks, group, tables, layer, shift, head_bytes, keys, values,
            address(exceptions) + 8 * EXCEPTION_FIELDS * spans[s, REQUEST], scratch, work.part_max[parts],
            work.part_sum[parts], work.part_acc[parts],
        )  # fmt: skip
        if fetch_add(address(work.left[work.head_at[s] + unit :]), -1) == 1:
            combine_unit(spans, s, unit, joint_heads, work, out)
        task = take_task(work)


@numba.njit(nogil=True, cache=True)
def attend_prerope(
    workers: int, q: Any, spans: Any, tables: Any, layer: int, shift: int, head_bytes: int, keys: Any, values: Any,
    exceptions: Any, width: int, out: Any,
) -> None:  # fmt: skip
    """Attention of a ragged batch over one layer, by `workers` threads.

    q, tables, shift, head_bytes, out: as in `attention.attend_pages`; spans: [S, PREROPE_FIELDS]; keys:
    `prerope_blocks.KeyCoding`; values: `coded_blocks.ValueCoding`; exceptions: [requests, EXCEPTION_FIELDS]. All rows
    of a span see all its codes.
    """
    work = lay_out_work(spans, out.shape[2] * keys.joint_heads, width)
    arguments = q, spans, tables, layer, shift, head_bytes, keys, values, exceptions, out, work
    spread(workers, attend_prerope_tasks, arguments)
