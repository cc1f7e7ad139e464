"""Turns of key tiles [channels, 64], whose lanes are tokens: Hadamard transforms and the rotary embedding."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vcbench.engine.kernels.attention import BLOCK
from vcbench.engine.kernels.simd import LANES

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_NUMBERS = ir.VectorType(ir.FloatType(), LANES)
_ROW = 4 * BLOCK
"""Bytes of a row."""


def _vector(builder: Any, row: Any, number: int) -> Any:
    at = builder.add(row, ir.Constant(_I64, 4 * LANES * number))
    return builder.inttoptr(at, _NUMBERS.as_pointer())


@intrinsic(prefer_literal=True)
def _butterflies(
    typing_context: Any, count: Any, in_order: Any, source: Any, places: Any, target: Any, pitch: Any
) -> Any:
    """Hadamard transform of `count` rows, a literal power of two, to rows at `target`, `pitch` bytes apart.

    in_order, a literal: the rows come from `source`, `pitch` bytes apart too, or are those of the int32 at `places`.
    """
    if not isinstance(count, types.IntegerLiteral) or not isinstance(in_order, types.IntegerLiteral):
        return None
    rows, straight = count.literal_value, in_order.literal_value
    signature = types.void(count, in_order, *[types.int64] * 4)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, _, source_at, places_at, target_at, step = args
        steps = [builder.mul(step, ir.Constant(_I64, row)) for row in range(rows)]
        if straight:
            sources = [builder.add(source_at, shift) for shift in steps]
        else:
            at = [builder.add(places_at, ir.Constant(_I64, 4 * row)) for row in range(rows)]
            place = [builder.load(builder.inttoptr(x, _I32.as_pointer()), align=4) for x in at]
            shifts = [builder.mul(builder.sext(x, _I64), ir.Constant(_I64, _ROW)) for x in place]
            sources = [builder.add(source_at, shift) for shift in shifts]
        targets = [builder.add(target_at, shift) for shift in steps]
        for number in range(BLOCK // LANES):
            x = [builder.load(_vector(builder, row, number), align=4) for row in sources]
            span = 1
            while span < rows:
                for i in range(rows):
                    if not i & span:
                        a, b = x[i], x[i + span]
                        x[i], x[i + span] = builder.fadd(a, b), builder.fsub(a, b)
                span *= 2
            for row, value in zip(targets, x, strict=True):
                builder.store(value, _vector(builder, row, number), align=4)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _turn_pair(typing_context: Any, upper: Any, lower: Any, cos: Any, sin: Any) -> Any:
    """Turns two rows of 64, in place, by the angles of their lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_NUMBERS, [_NUMBERS] * 3)
        fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        for number in range(BLOCK // LANES):
            places = [_vector(builder, row, number) for row in args]
            a, b, c, s = (builder.load(place, align=4) for place in places)
            first = builder.call(fused, [a, c, builder.fneg(builder.fmul(b, s))])
            builder.store(first, places[0], align=4)
            builder.store(builder.call(fused, [b, c, builder.fmul(a, s)]), places[1], align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@numba.njit(nogil=True)
def hadamard_tile(source: int, order: int, rows: int, out: int) -> None:
    """Hadamard transform, without its scale, of rows source[order[i]] down each column, to `out`; addresses.

    rows: a power of two of at least 8. Sums are taken in the order of the transform's stages.
    """
    for base in range(0, rows, 8):
        _butterflies(8, 0, source, order + 4 * base, out + base * _ROW, _ROW)
    span = 8
    while span < rows:
        radix = min(8, rows // span)
        pitch = span * _ROW
        for base in range(0, rows, radix * span):
            for i in range(base, base + span):
                at = out + i * _ROW
                if radix == 8:
                    _butterflies(8, 1, at, 0, at, pitch)
                elif radix == 4:
                    _butterflies(4, 1, at, 0, at, pitch)
                else:
                    _butterflies(2, 1, at, 0, at, pitch)
        span *= radix


@numba.njit(nogil=True)
def rope_tile(tile: int, cos: int, sin: int, half: int) -> None:
    """Rotary embedding of a tile [2 * half, 64] in place, pairs d and d + half. cos, sin: [half, 64]; addresses."""
    for d in range(half):
        row = tile + d * _ROW
        _turn_pair(row, row + half * _ROW, cos + d * _ROW, sin + d * _ROW)
