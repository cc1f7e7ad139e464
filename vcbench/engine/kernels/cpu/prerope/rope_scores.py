"""Products of queries with key tiles [channels, 64], whose lanes are tokens, turned to their positions.

A rotary embedding by position p is one by the block's first position, which the query takes back, and one by the place
in the block, which needs the same 64 angles a frequency in every block: keys are turned in registers and never stored.
Of a Hadamard transform the stage that pairs channels d and d + D / 2 is left to the query too, see `turn_rows`.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.prerope.tile_rows import I64, NUMBERS, vector_at, vector_fma
from vcbench.engine.kernels.cpu.simd import LANES, MAX_TILE_ROWS, STRIP, TileEmitter, fma, load, store

_TURNED_VECTORS = 4 if STRIP == BLOCK else 1
"""Vectors of a row that are turned at a time: so many sums of each query row stay in registers."""


class _TurnedEmitter(TileEmitter):
    """Emits `turned_tile`: of each pair of rows of a tile both numbers are turned, then multiplied by all queries."""

    def __init__(self, builder: Any, rows: int, args: Any) -> None:
        queries, ldq, tile, cos, sin, scores, ldc, half = args
        super().__init__(builder, rows, (queries, ldq, tile, scores, ldc, half, ir.Constant(I64, BLOCK)))
        self.cos, self.sin = cos, sin

    def turned(self, k: Any, columns: list[Any]) -> tuple[list[Any], list[Any]]:
        """Rows k and k + D / 2 at their places in the block."""
        build, line = self.builder, self.builder.mul(k, self.width)
        other = build.add(line, build.mul(self.depth, self.width))

        def numbers(base: Any, start: Any) -> list[Any]:
            return [build.load(self.address(base, build.add(start, x), NUMBERS), align=4) for x in columns]

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
        k = build.phi(I64)
        sums = [[build.phi(NUMBERS) for _ in columns] for _ in range(self.rows)]
        upper, lower = self.turned(k, columns)
        later = build.add(k, self.depth)
        updated = []
        for r in range(self.rows):
            factor = self.factor(r, k)
            updated.append([build.call(self.fma, [factor, u, s]) for u, s in zip(upper, sums[r], strict=True)])
        for r in range(self.rows):
            factor = self.factor(r, later)
            updated[r] = [build.call(self.fma, [factor, w, s]) for w, s in zip(lower, updated[r], strict=True)]
        following = build.add(k, ir.Constant(I64, 1))
        k.add_incoming(ir.Constant(I64, 0), head)
        k.add_incoming(following, loop)
        for phis, values in zip(sums, updated, strict=True):
            for phi, value in zip(phis, values, strict=True):
                phi.add_incoming(ir.Constant(NUMBERS, [0.0] * LANES), head)
                phi.add_incoming(value, loop)
        build.cbranch(build.icmp_signed("<", following, self.depth), loop, done)
        build.position_at_end(done)
        for r, values in enumerate(updated):
            for column, value in zip(columns, values, strict=True):
                build.store(value, self.address(self.c, self.row_of(r, self.ldc, column), NUMBERS), align=4)


@intrinsic(prefer_literal=True)
def _turned_tile(
    typing_context: Any, rows: Any, queries: Any, ldq: Any, tile: Any, cos: Any, sin: Any, scores: Any, ldc: Any,
    half: Any,
) -> Any:  # fmt: skip
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _TurnedEmitter(builder, count, args[1:]).sweep(ir.Constant(I64, 0), _TURNED_VECTORS)
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
        shift, fused = builder.shl(size, ir.Constant(I64, 2)), vector_fma(builder)
        places = row_at, builder.add(row_at, shift), cos_at, sin_at
        a, b, c, s = (builder.load(vector_at(builder, place, 0), align=4) for place in places)
        x = builder.call(fused, [a, c, builder.fmul(b, s)])
        y = builder.call(fused, [b, c, builder.fneg(builder.fmul(a, s))])
        if summed:
            x, y = builder.fadd(x, y), builder.fsub(x, y)
        builder.store(x, vector_at(builder, out_at, 0), align=4)
        builder.store(y, vector_at(builder, builder.add(out_at, shift), 0), align=4)
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
