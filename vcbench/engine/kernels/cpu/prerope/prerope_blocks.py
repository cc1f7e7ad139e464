"""One block of 64 tokens whose keys are coded before their rotary embedding: its tiles, scores and sums of values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from vcbench.engine.kernels.cpu.codes.coded_attention import (
    K_CODES,
    K_MINIMA,
    K_STEPS,
    head_place,
)
from vcbench.engine.kernels.cpu.codes.coded_blocks import add_exact_scores, add_exact_values, add_values
from vcbench.engine.kernels.cpu.codes.exceptions import (
    add_value_outliers,
    exact_scores,
    exact_values,
    tokens_within,
)
from vcbench.engine.kernels.cpu.codes.folding import load_half
from vcbench.engine.kernels.cpu.codes.products import bits_of
from vcbench.engine.kernels.cpu.codes.tiles import decode_by_table, widened_line
from vcbench.engine.kernels.cpu.exact.attention import (
    BLOCK,
    SCORE_STRIDE,
    softmax_block,
)
from vcbench.engine.kernels.cpu.prerope.hadamard_tiles import transform_codes
from vcbench.engine.kernels.cpu.prerope.rope_scores import turn_rows, turned_scores
from vcbench.engine.kernels.cpu.simd import address, fma


class KeyCoding(NamedTuple):
    """form, levels: see `tiles.level_table`. What brings codes back to keys at position 0 depends on `transformed`:

    If not, a code's level times its channel's step, plus its minimum, [D] of each head. If so, a code's level times its
    token's step, plus its minimum, [blocks, 64] of each vector of 1 << shift channels of codes; then the Hadamard
    transform of `together` heads. origin: [Hk * D] int32, the coded channel that each channel comes from.
    cos, sin: [D / 2, 64], the angles within a block, their sign and the scale being the transform's; start_cos,
    start_sin: [blocks, D / 2], those of a block's first position.
    """

    form: int
    levels: Any
    transformed: bool
    centred: bool
    shift: int
    together: int
    origin: Any
    cos: Any
    sin: Any
    start_cos: Any
    start_sin: Any


class Scratch(NamedTuple):
    """A thread's working memory, for spans of up to R rows and units of T heads.

    query, turned: [T, R, D]; tiles: [T * D, 64]; tables: [D, 16], what codes stand for; scales: [vectors, 2, 64];
    folded: [groups * R, 64]; scores, other: [R, SCORE_STRIDE]; row_sum: [T, R, 64].
    """

    query: Any
    turned: Any
    tiles: Any
    tables: Any
    scales: Any
    folded: Any
    scores: Any
    other: Any
    row_sum: Any


@numba.njit(nogil=True)
def make_scratch(rows: int, depth: int, keys: Any, values: Any) -> Any:
    """Working memory; scales are zeros."""
    together = keys.together
    return Scratch(
        np.empty((together, rows, depth), np.float32),
        np.empty((together, rows, depth), np.float32),
        np.empty((together * depth, BLOCK), np.float32),
        np.empty((depth, keys.levels.shape[0]), np.float32),
        np.zeros((keys.origin.shape[0] >> keys.shift, 2, BLOCK), np.float32),
        np.empty((values.groups * rows, BLOCK), np.float32),
        np.empty((rows, SCORE_STRIDE), np.float32),
        np.empty((rows, SCORE_STRIDE), np.float32),
        np.empty((together, rows, BLOCK), np.float32),
    )


class Plan(NamedTuple):
    """What a task's blocks of keys have in common, all of it numbers and addresses: arrays would be counted each time.

    codes, steps, minima: of the unit's head, or of the first vector, with the bytes from one vector to the next.
    origin: of the unit's first channel.
    """

    form: int
    transformed: bool
    centred: bool
    shift: int
    vectors: int
    depth: int
    tile_rows: int
    rows: int
    codes: int
    steps: int
    minima: int
    codes_pitch: int
    steps_pitch: int
    minima_pitch: int
    origin: int
    levels: int
    cos: int
    sin: int
    start_cos: int
    start_sin: int
    query: int
    query_pitch: int
    turned: int
    tiles: int
    tables: int
    scales: int
    scores: int


@numba.njit(nogil=True)
def make_plan(keys: Any, spans: Any, s: int, layer: int, unit: int, rows: int, scratch: Any) -> Any:
    """The plan of a unit's chunk."""
    tile_rows, depth = scratch.tiles.shape[0], scratch.query.shape[2]
    place = head_place(spans, s, K_CODES, layer, 0 if keys.transformed else unit)
    origin = address(keys.origin) + 4 * unit * tile_rows
    return Plan(
        keys.form, keys.transformed, keys.centred, keys.shift, scratch.scales.shape[0], depth, tile_rows, rows,
        place[0], place[1], place[2], spans[s, K_CODES + 2], spans[s, K_STEPS + 2], spans[s, K_MINIMA + 2], origin,
        address(keys.levels), address(keys.cos), address(keys.sin), address(keys.start_cos),
        address(keys.start_sin), address(scratch.query), 4 * scratch.query.shape[1] * depth,
        address(scratch.turned), address(scratch.tiles), address(scratch.tables), address(scratch.scales),
        address(scratch.scores),
    )  # fmt: skip


@numba.njit(nogil=True)
def channel_tables(keys: Any, plan: Any, tables: Any) -> None:
    """tables[d, c] = what code c of channel d of a head stands for."""
    for d in range(tables.shape[0]):
        step, minimum = load_half(plan.steps + 2 * d), load_half(plan.minima + 2 * d)
        for c in range(tables.shape[1]):
            tables[d, c] = fma(keys.levels[c], step, minimum)


@numba.njit(nogil=True)
def unit_tiles(plan: Any, block: int) -> None:
    """Puts a block's keys of a unit's heads into the tiles; if transformed, but for scale and one stage."""
    line = BLOCK * bits_of(plan.form) // 8
    if not plan.transformed:
        decode_by_table(plan.form, plan.codes + block * plan.depth * line, plan.tables, plan.tiles, plan.depth)
        return
    for vector in range(plan.vectors):
        at, to = 2 * BLOCK * block, plan.scales + 8 * BLOCK * vector
        widened_line(plan.steps + vector * plan.steps_pitch + at, to)
        if plan.centred:
            widened_line(plan.minima + vector * plan.minima_pitch + at, to + 4 * BLOCK)
    transform_codes(
        plan.form, plan.codes + (block << plan.shift) * line, plan.codes_pitch, plan.shift, plan.levels, plan.scales,
        plan.origin, plan.depth, plan.tile_rows, plan.tiles,
    )  # fmt: skip


@numba.njit(nogil=True)
def coded_scores(plan: Any, inside: int, block: int) -> None:
    """Scores of a block's coded keys, those of the unit's head `inside`."""
    half, turned = plan.depth // 2, plan.turned + inside * plan.query_pitch
    cos, sin = plan.start_cos + 4 * block * half, plan.start_sin + 4 * block * half
    turn_rows(plan.query + inside * plan.query_pitch, plan.rows, half, cos, sin, plan.transformed, turned)
    tile = plan.tiles + 4 * BLOCK * inside * plan.depth
    turned_scores(plan.rows, turned, tile, plan.cos, plan.sin, half, plan.scores, SCORE_STRIDE)


@numba.njit(nogil=True)
def head_step(
    plan: Any, inside: int, head: int, tile_index: int, block: int, keys_page: int, values_page: int, group: int,
    visible: int, ready_keys: int, ready_values: int, values: Any, place: Any, exceptions: int, query: Any, scores: Any,
    other: Any, folded: Any, row_max: Any, row_sum: Any, acc: Any,
) -> None:  # fmt: skip
    """One block, of whose tokens some are codes, for the query rows of one head, which see `visible` of it or more.

    place: of the head's values; exceptions: an address. query: [rows, D]; row_max: [rows]; acc: [rows, width].
    """
    rows, width, start = acc.shape[0], acc.shape[1], block * BLOCK
    begin, end = tokens_within(exceptions, start, max(ready_keys, ready_values))
    if ready_keys:
        coded_scores(plan, inside, block)
        if begin < end:
            exact_scores(exceptions, begin, end, start, head, query, scores)
    if ready_keys < BLOCK:
        add_exact_scores(query, keys_page, ready_keys, other, scores)
    for r in range(rows):
        softmax_block(scores, r, min(BLOCK, visible + r // group), row_max, row_sum, acc, width)
    if ready_values:
        if begin < end:
            exact_values(exceptions, begin, end, start, head, plan.depth, scores, acc)
        add_value_outliers(exceptions, tile_index, plan.depth, rows, plan.scores, address(acc), width)
        add_values(values, scores, rows, place, block, ready_values, folded, acc)
    if ready_values < BLOCK:
        add_exact_values(scores, rows, group, values_page, ready_values, visible, acc)
