"""Attention over KVQuant's codes on a GPU: codebooks in a range, sparse outliers, pre-RoPE keys, exact first tokens.

The two halves of a key that the rotary embedding mixes are decoded side by side. Outliers are added to a tile of codes
by products with one-hot matrices in float16, which are exact: each place has at most one outlier. See `parts`
for spans and splits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.triton.parts import (
    COMMON,
    HEAD_STRIDE,
    HEADS,
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

OUTLIERS = 32
"""Outliers put into a tile at a time."""

DONE, FIRST, COS, SIN, K_LEVELS, V_LEVELS, V_OFFSETS, V_RANGES = map(tl.constexpr, range(COMMON, COMMON + 8))
"""Tokens that are codes; exact ones before them; addresses of the rotary tables [P, D / 2], of the codes' levels
(float32), and of the offsets and ranges of each token's values (float16)."""

K_CODES, V_CODES, K_OFFSETS, K_RANGES, FIRST_KEYS, FIRST_VALUES = map(tl.constexpr, range(COMMON + 8, COMMON + 20, 2))
"""Two fields each: a layer's address, and elements from head to head."""

K_TILES, V_TILES = map(tl.constexpr, (COMMON + 20, COMMON + 24))
"""Four fields each, of the outliers: how many tiles there are; addresses of the numbers (float16), of the places
(int16) and of where a tile's begin (int32). Tiles go by block, then by head."""

OWN = 28
"""Fields beside the common ones."""


def attend_nonuniform(launch: Launch, q: Tensor, *, bits: int, value_bytes: int, sparse: bool) -> Tensor:
    """Attention of q: [n, H, D], token i over positions below VISIBLE + i; returns [n, H, D].

    value_bytes: of the codes of one token's values in a head. sparse: whether any span has outliers.
    """
    q = rows_of(q)
    depth = q.shape[2]
    parts = launch.parts(depth)
    _attend[launch.grid()](
        q, *parts, launch.spans, launch.fields, q.stride(0), q.stride(1), launch.tiles, launch.splits, depth**-0.5,
        DEPTH=depth, WIDE=padded(depth), HALF=padded(depth // 2), GROUP=launch.group, ROWS=ROWS, BLOCK=BLOCK,
        BITS=bits, KEY_BYTES=BLOCK * bits // 8, VALUE_BYTES=value_bytes, SPARSE=sparse, OUTLIERS=OUTLIERS,
        num_warps=8, num_stages=1,
    )  # fmt: skip
    return launch.joined(parts, q)


@triton.jit
def add_outliers(  # type: ignore[no-untyped-def]
    tile, span, index, rows, columns, COLUMNS: tl.constexpr, FIELD: tl.constexpr, CHUNK: tl.constexpr
):
    """The tile with what its codes miss added; rows, columns: of the places that it holds, -1 for none.

    A place is row * COLUMNS + column.
    """
    known, numbers = count(span, FIELD) > index, address(span, FIELD + 1, tl.float16)
    places, starts = address(span, FIELD + 2, tl.int16), address(span, FIELD + 3, tl.int32)
    begin, end = tl.load(starts + index, mask=known, other=0), tl.load(starts + index + 1, mask=known, other=0)
    for first in range(begin, end, CHUNK):
        at = first + tl.arange(0, CHUNK)
        number = tl.load(numbers + at, mask=at < end, other=0.0)
        place = tl.load(places + at, mask=at < end, other=-COLUMNS).to(tl.int32)
        row, column = place // COLUMNS, place % COLUMNS
        in_row = rows[:, None] == tl.where(at < end, row, -2)[None, :]
        in_column = (column[:, None] == columns[None, :]).to(tl.float16)
        tile += tl.dot(tl.where(in_row, number[None, :], 0.0).to(tl.float16), in_column)
    return tile


@triton.jit
def key_half(  # type: ignore[no-untyped-def]
    span, head, block, index, channel, deep, ahead,
    DEPTH: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, BYTES: tl.constexpr, SPARSE: tl.constexpr,
    OUTLIERS: tl.constexpr,
):  # fmt: skip
    """Some channels of a block's keys before their rotary embedding: [channels, tokens], float32."""
    line = aligned(head_of(span, head, K_CODES, tl.uint8)) + (block.to(tl.int64) * DEPTH + channel) * BYTES
    code = codes(line[:, None], ahead[None, :], deep[:, None], BITS, BYTES)
    step = tl.load(head_of(span, head, K_RANGES, tl.float16) + channel, mask=deep, other=0.0).to(tl.float32)
    offset = tl.load(head_of(span, head, K_OFFSETS, tl.float16) + channel, mask=deep, other=0.0).to(tl.float32)
    key = tl.load(address(span, K_LEVELS, tl.float32) + code) * step[:, None] + offset[:, None]
    if SPARSE:
        key = add_outliers(key, span, index, tl.where(deep, channel, -1), ahead, BLOCK, K_TILES, OUTLIERS)
    return key


@triton.jit
def exact_half(  # type: ignore[no-untyped-def]
    tail, first, position, stored, early, tail_start, channel, deep, DEPTH: tl.constexpr
):
    """A tile [tokens, channels] of the exact entries, in float32, 0 where there are none."""
    at = (position - tail_start)[:, None] * DEPTH + channel[None, :]
    entries = tl.load(tail + at, mask=stored[:, None] & deep[None, :], other=0.0).to(tl.float32)
    at = position[:, None] * DEPTH + channel[None, :]
    return entries + tl.load(first + at, mask=early[:, None] & deep[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["tiles", "splits"])
def _attend(  # type: ignore[no-untyped-def]
    q, parts, peaks, totals, spans, fields, row_stride, head_stride, tiles, splits, scale,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, BITS: tl.constexpr, KEY_BYTES: tl.constexpr, VALUE_BYTES: tl.constexpr,
    SPARSE: tl.constexpr, OUTLIERS: tl.constexpr,
):  # fmt: skip
    span = spans + tl.program_id(0) * fields
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    inside, channel, low, ahead = tl.arange(0, ROWS), tl.arange(0, WIDE), tl.arange(0, HALF), tl.arange(0, BLOCK)
    row, deep, half = tile * ROWS + inside, channel < DEPTH, low < DEPTH // 2
    high = low + DEPTH // 2
    operand = q.dtype.element_ty
    query_low = query_rows(q, span, head, row, low, half, row_stride, head_stride, GROUP, 1)
    query_high = query_rows(q, span, head, row, high, half, row_stride, head_stride, GROUP, 1)
    limit = count(span, VISIBLE) + row // GROUP
    first, stop, end = split_of(span, head, tile, GROUP, 1, ROWS)
    done, early_tokens, heads = count(span, DONE), count(span, FIRST), count(span, HEADS)
    tail_start, shift = count(span, TAIL_START), head * tl.load(span + HEAD_STRIDE)
    tail_keys = aligned(address(span, KEYS, operand) + shift)
    tail_values = aligned(address(span, VALUES, operand) + shift)
    first_keys, first_values = head_of(span, head, FIRST_KEYS, operand), head_of(span, head, FIRST_VALUES, operand)
    value_codes = aligned(head_of(span, head, V_CODES, tl.uint8))
    value_offsets, value_ranges = address(span, V_OFFSETS, tl.float16), address(span, V_RANGES, tl.float16)
    highest = tl.full((ROWS,), -3.0e38, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(first, stop, BLOCK):
        start = tl.multiple_of(start, BLOCK)
        position = start + ahead
        early = position < early_tokens
        coded = (position < done) & (position >= early_tokens)
        stored = (position >= done) & (position < end)
        block = start // BLOCK
        index = block * heads + head
        readable_half = low < tl.where(start < done, DEPTH // 2, 0)
        readable = channel < tl.where(start < done, DEPTH, 0)

        a = key_half(
            span, head, block, index, low, readable_half, ahead, DEPTH, BLOCK, BITS, KEY_BYTES, SPARSE, OUTLIERS
        )
        b = key_half(
            span, head, block, index, high, readable_half, ahead, DEPTH, BLOCK, BITS, KEY_BYTES, SPARSE, OUTLIERS
        )
        at = position[None, :] * (DEPTH // 2) + low[:, None]
        turned = coded[None, :] & half[:, None]
        cos = tl.load(aligned(address(span, COS, tl.float32)) + at, mask=turned, other=0.0)
        sin = tl.load(aligned(address(span, SIN, tl.float32)) + at, mask=turned, other=0.0)
        key = tl.where(turned, a * cos - b * sin, 0.0)
        key += tl.trans(exact_half(tail_keys, first_keys, position, stored, early, tail_start, low, half, DEPTH))
        scores = tl.dot(query_low, key.to(operand), input_precision="ieee")
        key = tl.where(turned, b * cos + a * sin, 0.0)
        key += tl.trans(exact_half(tail_keys, first_keys, position, stored, early, tail_start, high, half, DEPTH))
        scores += tl.dot(query_high, key.to(operand), input_precision="ieee")
        highest, weights, shrink = weigh(scores * scale, position[None, :] < limit[:, None], highest)

        line = value_codes + position * VALUE_BYTES
        code = codes(line[:, None], channel[None, :], readable[None, :], BITS, VALUE_BYTES)
        step = tl.load(value_ranges + position, mask=coded, other=0.0).to(tl.float32)
        offset = tl.load(value_offsets + position, mask=coded, other=0.0).to(tl.float32)
        value = tl.load(address(span, V_LEVELS, tl.float32) + code) * step[:, None] + offset[:, None]
        if SPARSE:
            value = add_outliers(value, span, index, ahead, tl.where(readable, channel, -1), DEPTH, V_TILES, OUTLIERS)
        value = tl.where(coded[:, None] & deep[None, :], value, 0.0)
        value += exact_half(tail_values, first_values, position, stored, early, tail_start, channel, deep, DEPTH)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(operand), value.to(operand), input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
    keep_part(mixed, highest, total, parts, peaks, totals, inside, channel, deep, splits, DEPTH, ROWS)
