"""Attention over RotateKV's codes on a GPU: pre-RoPE keys of several heads, transformed together and reordered.

A transform of T heads of size D is H_T x H_D, so that head h's key is the sum over g of H_T[h, g] R H_D x_g, where x_g
are the D transformed channels g and R is the rotary embedding. A program takes all T heads: each g is decoded, passed
through H_D and turned once, and met by the queries of all heads under the signs H_T[h, g]. The halves a and b of a
vector, which R mixes, need H_D / 2 alone: they are H(x_a + x_b) and H(x_a - x_b). See `parts` for spans and
splits and `codes` for values and exact tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.triton.codes import (
    EXACT,
    EXACT_KEYS,
    EXACT_VALUES,
    K_CODES,
    K_MINIMA,
    K_STEPS,
    KEYS_DONE,
    VALUES_DONE,
    Coding,
    coded_values,
    exact_entries,
    exact_index,
)
from vcbench.engine.kernels.triton.codes import OWN as CODE_FIELDS
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
    keep_part,
    query_rows,
    rows_of,
    split_of,
    weigh,
)

LEAST_HEAD = 32
"""The smallest head size whose halves fill a tile; larger ones are powers of two in any case."""

TOKEN_TILE = 32
"""Tokens decoded at a time."""

ORIGIN, COS, SIN = map(tl.constexpr, range(COMMON + CODE_FIELDS, COMMON + CODE_FIELDS + 3))
"""Addresses beside the fields of `codes`: of each transformed channel's coded one (int32, [Hk * D]) and of the
rotary tables [P, D / 2]. The stride of K_CODES, K_STEPS and K_MINIMA is that of their vectors."""

OWN = CODE_FIELDS + 3
"""Fields beside the common ones."""


def attend_rotated(launch: Launch, q: Tensor, hadamard: Tensor, keys: Coding, values: Coding, *, exact: bool) -> Tensor:
    """Attention of q: [n, H, D], token i over positions below VISIBLE + i; returns [n, H, D].

    hadamard: [D / 2, D / 2], entries 1 and -1, in q's dtype. keys.group: channels of a vector of codes.
    """
    q = rows_of(q)
    depth = q.shape[2]
    parts = launch.parts(depth)
    _attend[launch.grid()](
        q, hadamard, *parts, launch.spans, values.table(parts[1]), launch.fields, q.stride(0), q.stride(1),
        launch.tiles, launch.splits, depth**-0.5, (launch.together * depth) ** -0.5,
        DEPTH=depth, GROUP=launch.group, TOGETHER=launch.together, ROWS=ROWS, TILE=TOKEN_TILE, BLOCK=BLOCK,
        KEY_BITS=keys.bits, KEY_BYTES=keys.line_bytes, VECTOR=keys.group, VALUE_BITS=values.bits,
        VALUE_BYTES=values.line_bytes, VALUE_GROUP=values.group, VALUE_RULE=values.rule, HAS_EXACT=exact,
        num_warps=8, num_stages=1,
    )  # fmt: skip
    return launch.joined(parts, q)


@triton.jit
def coded_half(  # type: ignore[no-untyped-def]
    span, transformed, position, coded,
    BLOCK: tl.constexpr, BITS: tl.constexpr, BYTES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """What some transformed channels' codes stand for: [channels, tokens] float32, 0 where there are none."""
    origin = tl.load(address(span, ORIGIN, tl.int32) + transformed)
    vector, line = (origin // VECTOR).to(tl.int64), origin % VECTOR
    bytes_at = vector * tl.multiple_of(tl.load(span + K_CODES + 1), 16) + line * BYTES
    block = (position // BLOCK).to(tl.int64) * (VECTOR * BYTES)
    lines = aligned(address(span, K_CODES, tl.uint8)) + bytes_at[:, None] + block[None, :]
    code = codes(lines, (position % BLOCK)[None, :], coded[None, :], BITS, BYTES)
    at = (vector * tl.load(span + K_STEPS + 1))[:, None] + position[None, :]
    step = tl.load(address(span, K_STEPS, tl.float16) + at, mask=coded[None, :], other=0.0).to(tl.float32)
    minimum = tl.load(address(span, K_MINIMA, tl.float16) + at, mask=coded[None, :], other=0.0).to(tl.float32)
    return code.to(tl.float32) * step + minimum


@triton.jit
def transform_sign(head, g):  # type: ignore[no-untyped-def]
    """H_T[head, g]: 1 where the two numbers, below 16, share an even number of bits, else -1."""
    shared = head & g
    shared = shared ^ (shared >> 2)
    shared = shared ^ (shared >> 1)
    return (1 - 2 * (shared & 1)).to(tl.float32)


@triton.jit(do_not_specialize=["tiles", "splits"])
def _attend(  # type: ignore[no-untyped-def]
    q, hadamard, parts, peaks, totals, spans, value_levels, fields, row_stride, head_stride, tiles, splits, scale,
    norm,
    DEPTH: tl.constexpr, GROUP: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr, KEY_BITS: tl.constexpr, KEY_BYTES: tl.constexpr, VECTOR: tl.constexpr,
    VALUE_BITS: tl.constexpr, VALUE_BYTES: tl.constexpr, VALUE_GROUP: tl.constexpr, VALUE_RULE: tl.constexpr,
    HAS_EXACT: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = DEPTH // 2
    span = spans + tl.program_id(0) * fields
    group, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    inside, channel, low, ahead = tl.arange(0, ROWS), tl.arange(0, DEPTH), tl.arange(0, HALF), tl.arange(0, TILE)
    row, deep, half = tile * ROWS + inside, channel < DEPTH, low < HALF
    row_head = row % (GROUP * TOGETHER) // GROUP
    operand = q.dtype.element_ty
    query_low = query_rows(q, span, group, row, low, half, row_stride, head_stride, GROUP, TOGETHER)
    query_high = query_rows(q, span, group, row, low + HALF, half, row_stride, head_stride, GROUP, TOGETHER)
    matrix = tl.load(hadamard + low[:, None] * HALF + low[None, :])
    limit = count(span, VISIBLE) + row // (GROUP * TOGETHER)
    first, stop, end = split_of(span, group, tile, GROUP, TOGETHER, ROWS)
    keys_done, values_done = count(span, KEYS_DONE), count(span, VALUES_DONE)
    tail_start, tail_stride = count(span, TAIL_START), tl.load(span + HEAD_STRIDE)
    exact_stride = count(span, EXACT) * DEPTH
    highest = tl.full((ROWS,), -3.0e38, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DEPTH), tl.float32)
    for start in range(first, stop, TILE):
        start = tl.multiple_of(start, TILE)
        position = start + ahead
        number = tl.zeros((TILE,), tl.int32)
        if HAS_EXACT:
            number = exact_index(span, position, TILE, 16)

        coded = (position < keys_done) & (number == 0)
        at = position[None, :] * HALF + low[:, None]
        cos = tl.load(aligned(address(span, COS, tl.float32)) + at, mask=coded[None, :], other=0.0) * norm
        sin = tl.load(aligned(address(span, SIN, tl.float32)) + at, mask=coded[None, :], other=0.0) * norm
        scores = tl.zeros((ROWS, TILE), tl.float32)
        for g in range(TOGETHER):
            from_channel = (group * TOGETHER + g) * DEPTH + low
            a = coded_half(span, from_channel, position, coded, BLOCK, KEY_BITS, KEY_BYTES, VECTOR)
            b = coded_half(span, from_channel + HALF, position, coded, BLOCK, KEY_BITS, KEY_BYTES, VECTOR)
            plain_low = tl.dot(matrix, (a + b).to(operand), input_precision="ieee")
            plain_high = tl.dot(matrix, (a - b).to(operand), input_precision="ieee")
            sign = transform_sign(row_head, g)[:, None].to(operand)
            key = (plain_low * cos - plain_high * sin).to(operand)
            scores += tl.dot(query_low * sign, key, input_precision="ieee")
            key = (plain_high * cos + plain_low * sin).to(operand)
            scores += tl.dot(query_high * sign, key, input_precision="ieee")
        stored = (position >= keys_done) & (position < end) & (number == 0)
        for h in range(TOGETHER):
            head = group * TOGETHER + h
            tail = aligned(address(span, KEYS, operand) + head * tail_stride)
            exact = address(span, EXACT_KEYS, operand) + head * exact_stride
            key = exact_entries(tail, exact, number, position, stored, tail_start, low, half, DEPTH, HAS_EXACT)
            met = tl.dot(query_low, tl.trans(key).to(operand), input_precision="ieee")
            key = exact_entries(tail, exact, number, position, stored, tail_start, low + HALF, half, DEPTH, HAS_EXACT)
            met += tl.dot(query_high, tl.trans(key).to(operand), input_precision="ieee")
            scores += tl.where((row_head == h)[:, None], met, 0.0)
        highest, weights, shrink = weigh(scores * scale, position[None, :] < limit[:, None], highest)

        mixed = mixed * shrink[:, None]
        coded = (position < values_done) & (number == 0)
        stored = (position >= values_done) & (position < end) & (number == 0)
        for h in range(TOGETHER):
            head = group * TOGETHER + h
            value = coded_values(
                span, head, value_levels, start, ahead, channel, deep, coded, VALUE_BITS, VALUE_BYTES, VALUE_GROUP,
                VALUE_RULE, DEPTH // VALUE_GROUP,
            )  # fmt: skip
            tail = aligned(address(span, VALUES, operand) + head * tail_stride)
            exact = address(span, EXACT_VALUES, operand) + head * exact_stride
            value += exact_entries(tail, exact, number, position, stored, tail_start, channel, deep, DEPTH, HAS_EXACT)
            own = tl.where((row_head == h)[:, None], weights, 0.0).to(operand)
            mixed += tl.dot(own, value.to(operand), input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
    keep_part(mixed, highest, total, parts, peaks, totals, inside, channel, deep, splits, DEPTH, ROWS)
