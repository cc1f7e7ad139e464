"""Key tiles [channels, 64], whose lanes are tokens: Hadamard transforms, and products with keys at their positions.

A rotary embedding by position p is one by the block's first position, which the query takes back, and one by the place
in the block, which needs the same 64 angles a frequency in every block: keys are turned in registers and never stored.
Of a Hadamard transform the stage that pairs channels d and d + D / 2 is left to the query too, see `turn_rows`.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vcbench.engine.kernels.attention import BLOCK
from vcbench.engine.kernels.codes import Decoder
from vcbench.engine.kernels.simd import LANES, MAX_TILE_ROWS, STRIP, TileEmitter, fma, load, store

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_NUMBERS = ir.VectorType(ir.FloatType(), LANES)
_ROW = 4 * BLOCK
"""Bytes of a row."""
_VECTORS = BLOCK // LANES
_TURNED_VECTORS = 4 if STRIP == BLOCK else 1
"""Vectors of a row that are turned at a time: so many sums of each query row stay in registers."""


def _fma(builder: Any) -> Any:
    kind = ir.FunctionType(_NUMBERS, [_NUMBERS] * 3)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")


def _vector(builder: Any, row: Any, number: int) -> Any:
    at = builder.add(row, ir.Constant(_I64, 4 * LANES * number))
    return builder.inttoptr(at, _NUMBERS.as_pointer())


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
        places = [builder.add(at, builder.mul(step, ir.Constant(_I64, row))) for row in range(rows)]
        for number in range(_VECTORS):
            x = [builder.load(_vector(builder, place, number), align=4) for place in places]
            for place, value in zip(places, _stages(builder, x), strict=True):
                builder.store(value, _vector(builder, place, number), align=4)
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
        decoder, fused = Decoder(builder, kind, levels_at), _fma(builder)
        decoder.place(None, [], list(range(0, BLOCK, LANES)))

        line_bytes = ir.Constant(_I64, BLOCK * decoder.bits // 8)
        inside = builder.sub(builder.shl(ir.Constant(_I64, 1), bits), ir.Constant(_I64, 1))
        vectors, lines = [], []
        for row in range(rows):
            at = builder.inttoptr(builder.add(origin_at, ir.Constant(_I64, 4 * row)), _I32.as_pointer())
            channel = builder.zext(builder.load(at, align=4), _I64)
            vectors.append(builder.lshr(channel, bits))
            first_line = builder.add(codes_at, builder.mul(vectors[row], pitch))
            lines.append(builder.add(first_line, builder.mul(builder.and_(channel, inside), line_bytes)))
        steps = [builder.add(scales_at, builder.mul(vector, ir.Constant(_I64, 2 * _ROW))) for vector in vectors]
        for first in range(_VECTORS // 2):
            pair = (first, first + _VECTORS // 2)
            raw = [[decoder.numbers(line, number) for number in pair] for line in lines]
            for which, number in enumerate(pair):
                x = []
                for row in range(rows):
                    step = builder.load(_vector(builder, steps[row], number), align=4)
                    offset = builder.load(_vector(builder, steps[row], _VECTORS + number), align=4)
                    x.append(builder.call(fused, [raw[row][which], step, offset]))
                for row, value in enumerate(_stages(builder, x)):
                    place = builder.add(target_at, ir.Constant(_I64, _ROW * row))
                    builder.store(value, _vector(builder, place, number), align=4)
        return context.get_dummy_value()

    return signature, codegen


class _TurnedEmitter(TileEmitter):
    """Emits `turned_tile`: of each pair of rows of a tile both numbers are turned, then multiplied by all queries."""

    def __init__(self, builder: Any, rows: int, args: Any) -> None:
        queries, ldq, tile, cos, sin, scores, ldc, half = args
        super().__init__(builder, rows, (queries, ldq, tile, scores, ldc, half, ir.Constant(_I64, BLOCK)))
        self.cos, self.sin = cos, sin

    def turned(self, k: Any, columns: list[Any]) -> tuple[list[Any], list[Any]]:
        """Rows k and k + D / 2 at their places in the block."""
        build, line = self.builder, self.builder.mul(k, self.width)
        other = build.add(line, build.mul(self.depth, self.width))

        def numbers(base: Any, start: Any) -> list[Any]:
            return [build.load(self.address(base, build.add(start, x), _NUMBERS), align=4) for x in columns]

        upper, lower = [], []
        parts = numbers(self.b, line), numbers(self.b, other), numbers(self.cos, line), numbers(self.sin, line)
        for a, b, c, s in zip(*parts, strict=True):
            upper.append(build.call(self.fma, [a, c, build.fneg(build.fmul(b, s))]))
            lower.append(build.call(self.fma, [b, c, build.fmul(a, s)]))
        return upper, lower

    def factor(self, row: int, k: Any) -> Any:
        return self.splat(self.builder.load(self.address(self.a, self.row_of(row, self.lda, k), ir.FloatType())))

    def strip(self, x: Any, vectors: int) -> None:
        build = self.builder
        columns = self.columns(x, vectors)
        head = build.block
        loop, done = build.append_basic_block("pairs"), build.append_basic_block("pairs.done")
        build.branch(loop)
        build.position_at_end(loop)
        k = build.phi(_I64)
        sums = [[build.phi(_NUMBERS) for _ in columns] for _ in range(self.rows)]
        upper, lower = self.turned(k, columns)
        later = build.add(k, self.depth)
        updated = []
        for r in range(self.rows):
            factor = self.factor(r, k)
            updated.append([build.call(self.fma, [factor, u, s]) for u, s in zip(upper, sums[r], strict=True)])
        for r in range(self.rows):
            factor = self.factor(r, later)
            updated[r] = [build.call(self.fma, [factor, w, s]) for w, s in zip(lower, updated[r], strict=True)]
        following = build.add(k, ir.Constant(_I64, 1))
        k.add_incoming(ir.Constant(_I64, 0), head)
        k.add_incoming(following, loop)
        for phis, values in zip(sums, updated, strict=True):
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(ir.Constant(_NUMBERS, [0.0] * LANES), head)
                phi.add_incoming(value, loop)
        build.cbranch(build.icmp_signed("<", following, self.depth), loop, done)
        build.position_at_end(done)
        for r, values in enumerate(updated):
            for column, value in zip(columns, values, strict=True):
                build.store(value, self.address(self.c, self.row_of(r, self.ldc, column), _NUMBERS), align=4)


@intrinsic(prefer_literal=True)
def _turned_tile(
    typing_context: Any, rows: Any, queries: Any, ldq: Any, tile: Any, cos: Any, sin: Any, scores: Any, ldc: Any,
    half: Any,
) -> Any:  # fmt: skip
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _TurnedEmitter(builder, count, args[1:]).sweep(ir.Constant(_I64, 0), _TURNED_VECTORS)
        return context.get_dummy_value()

    return types.void(rows, *[types.int64] * 8), codegen


@numba.njit(nogil=True)
def turned_scores(rows: int, queries: int, tile: int, cos: int, sin: int, half: int, scores: int, stride: int) -> None:
    """scores[r, j] = queries[r] . the key that column j of tile: [2 * half, 64] is once turned by its angles.

    cos, sin: [half, 64]; queries: [rows, 2 * half]; scores: `stride` floats from row to row; all are addresses.
    """
    depth, done = 2 * half, 0
    while done < rows:
        at, to, rest = queries + 4 * done * depth, scores + 4 * done * stride, rows - done
        if rest >= 6 and MAX_TILE_ROWS >= 6:
            _turned_tile(6, at, depth, tile, cos, sin, to, stride, half)
            done += 6
        elif rest >= 3:
            _turned_tile(3, at, depth, tile, cos, sin, to, stride, half)
            done += 3
        elif rest == 2:
            _turned_tile(2, at, depth, tile, cos, sin, to, stride, half)
            done += 2
        else:
            _turned_tile(1, at, depth, tile, cos, sin, to, stride, half)
            done += 1


@intrinsic(prefer_literal=True)
def _turn_vector(typing_context: Any, paired: Any, row: Any, half: Any, cos: Any, sin: Any, out: Any) -> Any:
    """`turn_rows` for 16 pairs of one row; paired: a literal."""
    if not isinstance(paired, types.IntegerLiteral):
        return None
    summed = bool(paired.literal_value)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, row_at, size, cos_at, sin_at, out_at = args
        shift, fused = builder.shl(size, ir.Constant(_I64, 2)), _fma(builder)
        places = row_at, builder.add(row_at, shift), cos_at, sin_at
        a, b, c, s = (builder.load(_vector(builder, place, 0), align=4) for place in places)
        x = builder.call(fused, [a, c, builder.fmul(b, s)])
        y = builder.call(fused, [b, c, builder.fneg(builder.fmul(a, s))])
        if summed:
            x, y = builder.fadd(x, y), builder.fsub(x, y)
        builder.store(x, _vector(builder, out_at, 0), align=4)
        builder.store(y, _vector(builder, builder.add(out_at, shift), 0), align=4)
        return context.get_dummy_value()

    return types.void(paired, *[types.int64] * 5), codegen


@numba.njit(nogil=True)
def turn_rows(query: int, rows: int, half: int, cos: int, sin: int, paired: bool, out: int) -> None:
    """Query rows [rows, 2 * half] turned back by one position's angles, cos, sin: [half]; all are addresses.

    paired: then each pair passes the stage (a + b, a - b) that the keys have missed. Keys must then be turned the other
    way, by -sin: for M that stage and R(t) a turn, R(t) M = M R(-t).
    """
    whole = half - half % LANES
    for r in range(rows):
        at, to = query + 8 * r * half, out + 8 * r * half
        for i in range(0, whole, LANES):
            if paired:
                _turn_vector(1, at + 4 * i, half, cos + 4 * i, sin + 4 * i, to + 4 * i)
            else:
                _turn_vector(0, at + 4 * i, half, cos + 4 * i, sin + 4 * i, to + 4 * i)
        for i in range(whole, half):
            first, second, c, s = 4 * i, 4 * (half + i), load(cos + 4 * i), load(sin + 4 * i)
            a, b = load(at + first), load(at + second)
            x, y = fma(a, c, b * s), fma(b, c, -(a * s))
            store(to + first, x + y if paired else x)
            store(to + second, x - y if paired else y)


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
        at, to = origin + 4 * base, out + base * _ROW
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
                at = out + i * _ROW
                if radix == 8:
                    _butterflies(8, at, span * _ROW)
                elif radix == 4:
                    _butterflies(4, at, span * _ROW)
                else:
                    _butterflies(2, at, span * _ROW)
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
