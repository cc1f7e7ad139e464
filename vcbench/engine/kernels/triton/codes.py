"""Attention over packed codes on a GPU: the same layout and meaning as on the CPU, see `quantised` and `packing`.

Each tile of keys and values is decoded in registers and is what `materialize` gives, in the model's precision; exact
entries stand where there are no codes, and in place of codes at the positions of exact tokens. See `parts` for
spans and splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.triton.parts import (
    COMMON,
    HEAD_STRIDE,
    KEYS,
    ROWS,
    TAIL_START,
    VALUES,
    VISIBLE,
    Launch,
    address,
    aligned,
    codes,
    count,
    head_of,
    keep_part,
    padded,
    query_rows,
    rows_of,
    split_of,
    weigh,
)

CODE_TILE = 32
"""Tokens decoded at a time."""

KEYS_DONE, VALUES_DONE, EXACT, EXACT_AT, EXACT_KEYS, EXACT_VALUES = map(tl.constexpr, range(COMMON, COMMON + 6))
"""Tokens whose keys and values are codes; exact tokens: how many, addresses of positions (int32), keys and values."""

K_CODES, K_STEPS, K_MINIMA, V_CODES, V_STEPS, V_MINIMA, K_SIGNS, K_NORMS = map(
    tl.constexpr, range(COMMON + 6, COMMON + 22, 2)
)
"""Two fields each: a layer's address, and elements from one head (or vector of codes) to the next."""

OWN = 22
"""Fields beside the common ones."""

LEVELS, SCALED_LEVELS, SYMMETRIC, AFFINE = map(tl.constexpr, range(4))
"""What a code stands for: levels[code], levels[code] * step, (code - half) * step, or code * step + minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How codes of keys or values are read. levels: float32, empty for uniform grids.

    group: tokens (by_channel) or channels that share a step. line_bytes: of a channel's 64 keys or a token's values.
    """

    bits: int
    group: int
    line_bytes: int
    levels: Tensor
    scaled: bool
    symmetric: bool
    by_channel: bool = False

    @property
    def rule(self) -> int:
        """One of the rules above."""
        if self.levels.numel():
            return SCALED_LEVELS.value if self.scaled else LEVELS.value
        return SYMMETRIC.value if self.symmetric else AFFINE.value

    def table(self, other: Tensor) -> Tensor:
        """The levels, or any other tensor where there are none to be read."""
        return self.levels if self.levels.numel() else other


def attend_codes(
    launch: Launch, q: Tensor, keys: Coding, values: Coding, *, exact: bool, projected: Tensor | None
) -> Tensor:
    """Attention of q: [n, H, D], token i over positions below VISIBLE + i; returns [n, H, D].

    exact: whether any span has exact tokens. projected: what the signs of a sketch are multiplied by, [n, H, D].
    """
    q = rows_of(q)
    depth = q.shape[2]
    parts = launch.parts(depth)
    tile = min(CODE_TILE, keys.group & -keys.group) if keys.by_channel else CODE_TILE
    _attend[launch.grid()](
        q, q if projected is None else projected, *parts, launch.spans, keys.table(parts[1]), values.table(parts[1]),
        launch.fields, q.stride(0), q.stride(1), launch.tiles, launch.splits, depth**-0.5,
        DEPTH=depth, WIDE=padded(depth), GROUP=launch.group, ROWS=ROWS, TILE=tile, BLOCK=BLOCK,
        BY_CHANNEL=keys.by_channel, KEY_BITS=keys.bits, KEY_BYTES=keys.line_bytes, KEY_GROUP=keys.group,
        KEY_RULE=keys.rule, VALUE_BITS=values.bits, VALUE_BYTES=values.line_bytes, VALUE_GROUP=values.group,
        VALUE_RULE=values.rule, HAS_EXACT=exact, SKETCHED=projected is not None, num_warps=4, num_stages=1,
    )  # fmt: skip
    return launch.joined(parts, q)


@triton.jit
def meaning(code, steps, minima, levels, mask, BITS: tl.constexpr, RULE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What codes stand for under one of the rules; steps, minima: pointers that broadcast to the codes' shape."""
    if RULE == LEVELS:
        value = tl.load(levels + code)
    else:
        step = tl.load(steps, mask=mask, other=0.0).to(tl.float32)
        if RULE == SCALED_LEVELS:
            value = tl.load(levels + code) * step
        elif RULE == SYMMETRIC:
            value = (code - (1 << (BITS - 1))).to(tl.float32) * step
        else:
            value = code.to(tl.float32) * step + tl.load(minima, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def exact_index(span, position, TILE: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each position the number of its exact token, counted from 1, or 0."""
    positions, held = address(span, EXACT_AT, tl.int32), count(span, EXACT)
    number = tl.zeros((TILE,), tl.int32)
    for first in range(0, held, CHUNK):
        at = first + tl.arange(0, CHUNK)
        there = tl.load(positions + at, mask=at < held, other=-1)
        number += tl.sum(tl.where(there[None, :] == position[:, None], at[None, :] + 1, 0), 1)
    return number


@triton.jit
def exact_entries(  # type: ignore[no-untyped-def]
    tail, exact, number, position, stored, tail_start, channel, deep, DEPTH: tl.constexpr, HAS_EXACT: tl.constexpr
):
    """A tile [tokens, channels] of exact entries in float32, 0 where there are none."""
    at = (position - tail_start)[:, None] * DEPTH + channel[None, :]
    entries = tl.load(tail + at, mask=stored[:, None] & deep[None, :], other=0.0).to(tl.float32)
    if HAS_EXACT:
        at = (number - 1)[:, None] * DEPTH + channel[None, :]
        entries += tl.load(exact + at, mask=(number > 0)[:, None] & deep[None, :], other=0.0).to(tl.float32)
    return entries


@triton.jit
def coded_values(  # type: ignore[no-untyped-def]
    span, head, levels, start, ahead, channel, deep, coded,
    BITS: tl.constexpr, BYTES: tl.constexpr, GROUP: tl.constexpr, RULE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile [tokens, channels] of what value codes stand for, 0 where there are none; COLUMNS: groups of a token."""
    token = start + ahead
    readable = coded[:, None] & deep[None, :]
    line = aligned(head_of(span, head, V_CODES, tl.uint8)) + token * BYTES
    code = codes(line[:, None], channel[None, :], readable, BITS, BYTES)
    steps, minima = head_of(span, head, V_STEPS, tl.float16), head_of(span, head, V_MINIMA, tl.float16)
    if COLUMNS == 1:
        value = meaning(code, (steps + token)[:, None], (minima + token)[:, None], levels, coded[:, None], BITS, RULE)
    else:
        at = token[:, None] * COLUMNS + (channel // GROUP)[None, :]
        value = meaning(code, steps + at, minima + at, levels, readable, BITS, RULE)
    return tl.where(readable, value, 0.0)


@triton.jit(do_not_specialize=["tiles", "splits"])
def _attend(  # type: ignore[no-untyped-def]
    q, projected, parts, peaks, totals, spans, key_levels, value_levels, fields, row_stride, head_stride, tiles,
    splits, scale,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr, BY_CHANNEL: tl.constexpr, KEY_BITS: tl.constexpr, KEY_BYTES: tl.constexpr,
    KEY_GROUP: tl.constexpr, KEY_RULE: tl.constexpr, VALUE_BITS: tl.constexpr, VALUE_BYTES: tl.constexpr,
    VALUE_GROUP: tl.constexpr, VALUE_RULE: tl.constexpr, HAS_EXACT: tl.constexpr, SKETCHED: tl.constexpr,
):  # fmt: skip
    span = spans + tl.program_id(0) * fields
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    inside, channel, ahead = tl.arange(0, ROWS), tl.arange(0, WIDE), tl.arange(0, TILE)
    row, deep = tile * ROWS + inside, channel < DEPTH
    operand = q.dtype.element_ty
    query = query_rows(q, span, head, row, channel, deep, row_stride, head_stride, GROUP, 1)
    if SKETCHED:
        sketch_query = query_rows(projected, span, head, row, channel, deep, row_stride, head_stride, GROUP, 1)
    limit = count(span, VISIBLE) + row // GROUP
    first, stop, end = split_of(span, head, tile, GROUP, 1, ROWS)
    keys_done, values_done = count(span, KEYS_DONE), count(span, VALUES_DONE)
    tail_start, shift = count(span, TAIL_START), head * tl.load(span + HEAD_STRIDE)
    tail_keys = aligned(address(span, KEYS, operand) + shift)
    tail_values = aligned(address(span, VALUES, operand) + shift)
    shift = head * count(span, EXACT) * DEPTH
    exact_keys, exact_values = address(span, EXACT_KEYS, operand) + shift, address(span, EXACT_VALUES, operand) + shift
    key_codes = aligned(head_of(span, head, K_CODES, tl.uint8))
    key_steps, key_minima = head_of(span, head, K_STEPS, tl.float16), head_of(span, head, K_MINIMA, tl.float16)
    highest = tl.full((ROWS,), -3.0e38, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(first, stop, TILE):
        start = tl.multiple_of(start, TILE)
        position = start + ahead
        number = tl.zeros((TILE,), tl.int32)
        if HAS_EXACT:
            number = exact_index(span, position, TILE, 16)

        coded = (position < keys_done) & (number == 0)
        readable = (channel < tl.where(start < keys_done, DEPTH, 0))[:, None]
        line = key_codes + ((start // BLOCK).to(tl.int64) * DEPTH + channel) * KEY_BYTES
        code = codes(line[:, None], (start % BLOCK + ahead)[None, :], readable, KEY_BITS, KEY_BYTES)
        if BY_CHANNEL:
            at = (start // KEY_GROUP * DEPTH + channel)[:, None]
            key = meaning(code, key_steps + at, key_minima + at, key_levels, readable, KEY_BITS, KEY_RULE)
        else:
            at = position[None, :]
            key = meaning(code, key_steps + at, key_minima + at, key_levels, coded[None, :], KEY_BITS, KEY_RULE)
        key = tl.where(coded[None, :] & deep[:, None], key, 0.0)
        stored = (position >= keys_done) & (position < end) & (number == 0)
        key += tl.trans(
            exact_entries(tail_keys, exact_keys, number, position, stored, tail_start, channel, deep, DEPTH, HAS_EXACT)
        )
        scores = tl.dot(query, key.to(operand), input_precision="ieee")
        if SKETCHED:
            line = ((start // BLOCK).to(tl.int64) * DEPTH + channel) * 8
            line = aligned(head_of(span, head, K_SIGNS, tl.uint8)) + line
            sign = codes(line[:, None], (start % BLOCK + ahead)[None, :], readable, 1, 8) * 2 - 1
            sign = tl.where(readable, sign, 0).to(operand)
            norm = tl.load(head_of(span, head, K_NORMS, tl.float16) + position, mask=coded, other=0.0).to(tl.float32)
            scores += tl.dot(sketch_query, sign, input_precision="ieee") * norm[None, :]
        highest, weights, shrink = weigh(scores * scale, position[None, :] < limit[:, None], highest)

        coded = (position < values_done) & (number == 0)
        value = coded_values(
            span, head, value_levels, start, ahead, channel, deep, coded, VALUE_BITS, VALUE_BYTES, VALUE_GROUP,
            VALUE_RULE, (DEPTH + VALUE_GROUP - 1) // VALUE_GROUP,
        )  # fmt: skip
        stored = (position >= values_done) & (position < end) & (number == 0)
        value += exact_entries(
            tail_values, exact_values, number, position, stored, tail_start, channel, deep, DEPTH, HAS_EXACT
        )
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(operand), value.to(operand), input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
    keep_part(mixed, highest, total, parts, peaks, totals, inside, channel, deep, splits, DEPTH, ROWS)
