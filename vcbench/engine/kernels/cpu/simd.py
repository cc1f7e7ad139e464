"""Building blocks of the CPU kernels: a fused multiply-add over row tiles, an exponential, raw loads and stores.

Addresses are int64 and count bytes; strides and widths count float32 elements.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vcbench.engine.kernels.cpu.separate import linked

LANES = 16
"""Widths of tiles are multiples of this."""

STRIP = 64 if llvm.get_host_cpu_features().get("avx512f", False) else 32
"""Columns kept in registers at a time: 32 registers of 16 floats hold 6 rows of 64, 16 of 8 floats 3 rows of 32."""

MAX_TILE_ROWS = 6 if STRIP == 64 else 3
"""More rows would not fit into registers."""

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)

Float = np.float32
_LOG2_E = Float(1.4426950408889634)
_LN2_HIGH = Float(-0.693359375)
_LN2_LOW = Float(2.12194440e-4)
_EXP_UNDERFLOW = Float(-87.0)
_E0, _E1, _E2 = Float(1.9875691500e-4), Float(1.3981999507e-3), Float(8.3334519073e-3)
_E3, _E4, _E5 = Float(4.1665795894e-2), Float(1.6666665459e-1), Float(5.0000001201e-1)


class TileEmitter:
    """Emits the loop nest of `fma_tile` for a fixed number of rows. Subclasses read B in other forms."""

    def __init__(self, builder: Any, rows: int, args: Any) -> None:
        self.builder, self.rows = builder, rows
        self.a, self.lda, self.b, self.c, self.ldc, self.depth, self.width = args
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        self.fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")

    def prepare(self, columns: list[Any]) -> None:
        """Emits what a strip needs before its loop over k."""

    def line(self, k: Any, columns: list[Any]) -> list[Any]:
        """B[k] at those columns, a vector each."""
        line = self.builder.mul(k, self.width)
        return [
            self.builder.load(self.address(self.b, self.builder.add(line, column), _VECTOR), align=4)
            for column in columns
        ]

    def factors(self, row: int, k: Any, vectors: int) -> list[Any]:
        """A[row, k] in all lanes, for each vector of a strip."""
        factor = self.splat(self.builder.load(self.address(self.a, self.row_of(row, self.lda, k), _F32)))
        return [factor] * vectors

    def address(self, base: Any, elements: Any, kind: Any) -> Any:
        offset = self.builder.shl(elements, ir.Constant(_I64, 2))
        return self.builder.inttoptr(self.builder.add(base, offset), kind.as_pointer())

    def row_of(self, row: int, stride: Any, column: Any) -> Any:
        return self.builder.add(self.builder.mul(ir.Constant(_I64, row), stride), column)

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
        zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def columns(self, x: Any, vectors: int) -> list[Any]:
        return [self.builder.add(x, ir.Constant(_I64, LANES * v)) for v in range(vectors)]

    def strip(self, x: Any, vectors: int) -> None:
        """C[:, x : x + vectors * LANES] += A @ B for those columns, accumulators in registers."""
        build = self.builder
        columns = self.columns(x, vectors)
        self.prepare(columns)
        targets = [
            [self.address(self.c, self.row_of(r, self.ldc, column), _VECTOR) for column in columns]
            for r in range(self.rows)
        ]
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        head = build.block
        loop, done = build.append_basic_block("depth"), build.append_basic_block("depth.done")
        build.branch(loop)
        build.position_at_end(loop)
        k = build.phi(_I64)
        sums = [[build.phi(_VECTOR) for _ in columns] for _ in range(self.rows)]
        b = self.line(k, columns)
        updated = []
        for r in range(self.rows):
            factors = self.factors(r, k, vectors)
            updated.append([build.call(self.fma, [factors[v], b[v], sums[r][v]]) for v in range(vectors)])
        following = build.add(k, ir.Constant(_I64, 1))
        k.add_incoming(ir.Constant(_I64, 0), head)
        k.add_incoming(following, loop)
        for r in range(self.rows):
            for v in range(vectors):
                sums[r][v].add_incoming(zero, head)
                sums[r][v].add_incoming(updated[r][v], loop)
        build.cbranch(build.icmp_signed("<", following, self.depth), loop, done)
        build.position_at_end(done)
        for row_targets, row_sums in zip(targets, updated, strict=True):
            for target, value in zip(row_targets, row_sums, strict=True):
                build.store(build.fadd(build.load(target, align=4), value), target, align=4)

    def sweep_all(self) -> None:
        """Every column."""
        rest = self.sweep(ir.Constant(_I64, 0), STRIP // LANES)
        if STRIP > LANES:
            self.sweep(rest, 1)

    def sweep(self, start: Any, vectors: int) -> Any:
        """Strips of `vectors` from column `start` while they fit; returns the first column left over."""
        build = self.builder
        step = ir.Constant(_I64, vectors * LANES)
        before = build.block
        test, body, end = (build.append_basic_block(name) for name in ("strip", "strip.body", "strip.done"))
        build.branch(test)
        build.position_at_end(test)
        x = build.phi(_I64)
        x.add_incoming(start, before)
        build.cbranch(build.icmp_signed("<=", build.add(x, step), self.width), body, end)
        build.position_at_end(body)
        self.strip(x, vectors)
        x.add_incoming(build.add(x, step), build.block)
        build.branch(test)
        build.position_at_end(end)
        return x


@intrinsic(prefer_literal=True)
def fma_tile(typing_context: Any, rows: Any, a: Any, lda: Any, b: Any, c: Any, ldc: Any, depth: Any, width: Any) -> Any:
    """C[r, x] += sum of A[r, k] * B[k, x], the sum taken from 0 by fma for k = 0 .. depth - 1 in this order.

    rows: literal, 1 .. 6. A: [rows, depth] with row stride lda. B: [depth, width], contiguous, width a multiple of
    LANES. C: [rows, width] with row stride ldc. depth >= 1.
    """
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value
    signature = types.void(rows, *[types.int64] * 7)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        TileEmitter(builder, count, args[1:]).sweep_all()
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once (float32)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def round_even(typing_context: Any, x: Any) -> Any:
    """Nearest whole float32, ties to even."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [_F32]), args)

    return types.float32(types.float32), codegen


@intrinsic
def bits_as_float(typing_context: Any, x: Any) -> Any:
    """The float32 whose bits are the int32 `x`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


@intrinsic
def half_as_float(typing_context: Any, x: Any) -> Any:
    """The float32 equal to the float16 whose bits are the uint16 `x`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), _F32)

    return types.float32(types.uint16), codegen


@intrinsic
def load(typing_context: Any, address: Any) -> Any:
    """The float32 at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _F32.as_pointer()))

    return types.float32(types.int64), codegen


def _integer_at(bits: int) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(bits)
        value = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=bits // 8)
        return builder.sext(value, _I64) if bits < 64 else value

    return codegen


@intrinsic
def load_int16(typing_context: Any, address: Any) -> Any:
    """The int16 at an address, as int64."""
    return types.int64(types.int64), _integer_at(16)


@intrinsic
def load_int32(typing_context: Any, address: Any) -> Any:
    """The int32 at an address, as int64."""
    return types.int64(types.int64), _integer_at(32)


@intrinsic
def load_int64(typing_context: Any, address: Any) -> Any:
    """The int64 at an address."""
    return types.int64(types.int64), _integer_at(64)


@intrinsic
def store(typing_context: Any, address: Any, value: Any) -> Any:
    """Writes a float32 to an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _F32.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@numba.njit(inline="always")
def exp(x: Any) -> Any:
    """e**x for x <= 88, 0 below -87; relative error under 2e-7 (Cephes expf polynomial). NaN stays NaN."""
    whole = round_even(x * _LOG2_E)
    r = fma(whole, _LN2_LOW, fma(whole, _LN2_HIGH, x))
    y = fma(fma(fma(fma(fma(_E0, r, _E1), r, _E2), r, _E3), r, _E4), r, _E5)
    y = fma(y, r * r, r + Float(1))
    y = y * bits_as_float((np.int32(whole) + np.int32(127)) << np.int32(23))
    return y if x >= _EXP_UNDERFLOW else (Float(0) if x < _EXP_UNDERFLOW else x)


@numba.njit(nogil=True)
def address(x: Any) -> Any:
    """Where an array begins, signed: numba's own address is not, and with a signed number makes a float."""
    return np.int64(x.ctypes.data)


@linked(8)
def fma_rows(rows: int, a: int, lda: int, b: int, c: int, ldc: int, depth: int, width: int) -> None:
    """`fma_tile` for any number of rows, as many at a time as registers hold."""
    done = 0
    while done < rows:
        at, to, rest = a + 4 * done * lda, c + 4 * done * ldc, rows - done
        if rest >= 6 and MAX_TILE_ROWS >= 6:
            fma_tile(6, at, lda, b, to, ldc, depth, width)
            done += 6
        elif rest >= 4 and MAX_TILE_ROWS >= 6:
            fma_tile(4, at, lda, b, to, ldc, depth, width)
            done += 4
        elif rest >= 3:
            fma_tile(3, at, lda, b, to, ldc, depth, width)
            done += 3
        elif rest == 2:
            fma_tile(2, at, lda, b, to, ldc, depth, width)
            done += 2
        else:
            fma_tile(1, at, lda, b, to, ldc, depth, width)
            done += 1
