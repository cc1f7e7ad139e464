"""Hadamard transforms of key tiles [channels, 64], whose lanes are tokens, from packed codes.

The stage that pairs channels d and d + D / 2 is left to the query, see `rope_scores.turn_rows`.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from vcbench.engine.kernels.cpu.codes.products import Decoder
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.prerope.tile_rows import I64, ROW_BYTES, ROW_VECTORS, vector_at, vector_fma
from vcbench.engine.kernels.cpu.simd import LANES

_I32 = ir.IntType(32)


def _stages(builder: Any, x: list[Any]) -> list[Any]:
    """The Hadamard transform of a list of vectors, in the order of its stages."""
    x, span = list(x), 1
    while span < len(x):
        for i in range(len(x)):
            if not i & span:
                a, b = x[i], x[i + span]
                x[i], x[i + span] = builder.fadd(a, b), builder.fsub(a, b)
        span *= 2
    return x


@intrinsic(prefer_literal=True)
def _butterflies(typing_context: Any, count: Any, first: Any, pitch: Any) -> Any:
    """Hadamard transform, in place, of `count` rows, a literal power of two, `pitch` bytes apart."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    rows = count.literal_value

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, at, step = args
        places = [builder.add(at, builder.mul(step, ir.Constant(I64, row))) for row in range(rows)]
        for number in range(ROW_VECTORS):
            x = [builder.load(vector_at(builder, place, number), align=4) for place in places]
            for place, value in zip(places, _stages(builder, x), strict=True):
                builder.store(value, vector_at(builder, place, number), align=4)
        return context.get_dummy_value()

    return types.void(count, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def _decoded_butterflies(
    typing_context: Any, count: Any, form: Any, codes: Any, vector_bytes: Any, shift: Any, levels: Any, scales: Any,
    origin: Any, target: Any,
) -> Any:  # fmt: skip
    """Hadamard transform of `count` rows of codes, decoded in registers, to consecutive rows at `target`.

    count, form: literals. origin: the int32 channel that each row comes from; a vector has 1 << shift of them. codes:
    the first vector's lines, `vector_bytes` before the next one's; scales: each vector's [2, 64], steps and offsets.
    """
    if not isinstance(count, types.IntegerLiteral) or not isinstance(form, types.IntegerLiteral):
        return None
    rows, kind = count.literal_value, form.literal_value
    signature = types.void(count, form, *[types.int64] * 7)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, _, codes_at, pitch, bits, levels_at, scales_at, origin_at, target_at = args
        decoder, fused = Decoder(builder, kind, levels_at), vector_fma(builder)
        decoder.place(None, [], list(range(0, BLOCK, LANES)))

        line_bytes = ir.Constant(I64, BLOCK * decoder.bits // 8)
        inside = builder.sub(builder.shl(ir.Constant(I64, 1), bits), ir.Constant(I64, 1))
        vectors, lines = [], []
        for row in range(rows):
            at = builder.inttoptr(builder.add(origin_at, ir.Constant(I64, 4 * row)), _I32.as_pointer())
            channel = builder.zext(builder.load(at, align=4), I64)
            vectors.append(builder.lshr(channel, bits))
            first_line = builder.add(codes_at, builder.mul(vectors[row], pitch))
            lines.append(builder.add(first_line, builder.mul(builder.and_(channel, inside), line_bytes)))
        steps = [builder.add(scales_at, builder.mul(vector, ir.Constant(I64, 2 * ROW_BYTES))) for vector in vectors]
        for first in range(ROW_VECTORS // 2):
            pair = (first, first + ROW_VECTORS // 2)
            raw = [[decoder.numbers(line, number) for number in pair] for line in lines]
            for which, number in enumerate(pair):
                x = []
                for row in range(rows):
                    step = builder.load(vector_at(builder, steps[row], number), align=4)
                    offset = builder.load(vector_at(builder, steps[row], ROW_VECTORS + number), align=4)
                    x.append(builder.call(fused, [raw[row][which], step, offset]))
                for row, value in enumerate(_stages(builder, x)):
                    place = builder.add(target_at, ir.Constant(I64, ROW_BYTES * row))
                    builder.store(value, vector_at(builder, place, number), align=4)
        return context.get_dummy_value()

    return signature, codegen


@numba.njit(nogil=True)
def transform_codes(
    form: int, codes: int, vector_bytes: int, shift: int, levels: int, scales: int, origin: int, depth: int, rows: int,
    out: int,
) -> None:  # fmt: skip
    """Hadamard transform of `rows` rows of codes down each column, to out: [rows, 64]; but for scale and one stage.

    The stage that pairs rows depth / 2 apart is missing. depth, rows: powers of two, 8 <= depth <= rows. Rest: see
    `_decoded_butterflies`.
    """
    span = 8 if depth > 8 else 4
    for base in range(0, rows, span):
        at, to = origin + 4 * base, out + base * ROW_BYTES
        if span == 4:
            _decoded_rows_4(form, codes, vector_bytes, shift, levels, scales, at, to)
        else:
            _decoded_rows_8(form, codes, vector_bytes, shift, levels, scales, at, to)
    while span < rows:
        if 2 * span == depth:
            span = depth
            continue
        last = depth // 2 if span < depth else rows
        radix = min(8, last // span)
        for base in range(0, rows, radix * span):
            for i in range(base, base + span):
                at = out + i * ROW_BYTES
                if radix == 8:
                    _butterflies(8, at, span * ROW_BYTES)
                elif radix == 4:
                    _butterflies(4, at, span * ROW_BYTES)
                else:
                    _butterflies(2, at, span * ROW_BYTES)
        span *= radix


def _decoded_rows(count: int) -> Any:
    @numba.njit(nogil=True)
    def run(
        form: int, codes: int, vector_bytes: int, shift: int, levels: int, scales: int, origin: int, target: int
    ) -> None:
        if form == 4:
            _decoded_butterflies(count, 4, codes, vector_bytes, shift, levels, scales, origin, target)
        elif form == 3:
            _decoded_butterflies(count, 3, codes, vector_bytes, shift, levels, scales, origin, target)
        else:
            _decoded_butterflies(count, 2, codes, vector_bytes, shift, levels, scales, origin, target)

    return run


_decoded_rows_4, _decoded_rows_8 = _decoded_rows(4), _decoded_rows(8)
