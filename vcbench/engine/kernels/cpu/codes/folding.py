"""Steps and minima of codes, folded into what the codes are multiplied by or into what comes of it.

x = (c - low) * step + (minimum + low * step) for a code c, with `low` half of the codes' range: the middle of a group,
so that little is lost between the two terms. Steps and minima are float16 bits.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vcbench.engine.kernels.cpu.simd import LANES, Float, fma, load, store

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()
_NUMBERS = ir.VectorType(_F32, LANES)


class _LineEmitter:
    """Emits loops over 16 elements of a line at a time."""

    def __init__(self, builder: Any, stride: int) -> None:
        self.builder, self.stride = builder, stride
        kind = ir.FunctionType(_NUMBERS, [_NUMBERS] * 3)
        self.fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")

    def halves(self, base: Any, index: Any) -> Any:
        """Elements index .. index + 15, each `stride` halves after the one before, as float32."""
        build, count = self.builder, LANES * self.stride
        kind = ir.VectorType(_I16, count)
        at = build.add(base, build.mul(index, ir.Constant(_I64, 2 * self.stride)))
        raw = build.load(build.inttoptr(at, kind.as_pointer()), align=2)
        if self.stride > 1:
            lanes = ir.Constant(ir.VectorType(_I32, LANES), list(range(0, count, self.stride)))
            raw = build.shuffle_vector(raw, ir.Constant(kind, ir.Undefined), lanes)
        return build.fpext(build.bitcast(raw, ir.VectorType(ir.HalfType(), LANES)), _NUMBERS)

    def numbers(self, base: Any, index: Any) -> Any:
        return self.builder.load(self.pointer(base, index), align=4)

    def pointer(self, base: Any, index: Any) -> Any:
        at = self.builder.add(base, self.builder.shl(index, ir.Constant(_I64, 2)))
        return self.builder.inttoptr(at, _NUMBERS.as_pointer())

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(_NUMBERS, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))

    def each(self, count: Any, body: Any) -> Any:
        """total = body(index, total) for index 0, 16, ... below `count`; the vector `total` starts as zeros."""
        build, before = self.builder, self.builder.block
        test, inside, end = (build.append_basic_block(name) for name in ("line", "line.body", "line.done"))
        build.branch(test)
        build.position_at_end(test)
        index, total = build.phi(_I64), build.phi(_NUMBERS)
        index.add_incoming(ir.Constant(_I64, 0), before)
        total.add_incoming(ir.Constant(_NUMBERS, [0.0] * LANES), before)
        following = build.add(index, ir.Constant(_I64, LANES))
        build.cbranch(build.icmp_signed("<=", following, count), inside, end)
        build.position_at_end(inside)
        total.add_incoming(body(index, total), build.block)
        index.add_incoming(following, build.block)
        build.branch(test)
        build.position_at_end(end)
        return total

    def lane_sum(self, vector: Any) -> Any:
        """Halves added to each other until one lane is left."""
        build, lanes = self.builder, LANES
        while lanes > 1:
            lanes //= 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            low, high = (
                build.shuffle_vector(
                    vector, undefined, ir.Constant(ir.VectorType(_I32, lanes), list(range(first, first + lanes)))
                )
                for first in (0, lanes)
            )
            vector = build.fadd(low, high)
        return build.extract_element(vector, ir.Constant(_I32, 0))


@intrinsic(prefer_literal=True)
def _fold(typing_context: Any, stride: Any, x: Any, steps: Any, minima: Any, low: Any, count: Any, out: Any) -> Any:
    if not isinstance(stride, types.IntegerLiteral):
        return None
    step = stride.literal_value
    signature = types.float32(stride, types.int64, types.int64, types.int64, types.float32, types.int64, types.int64)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, source, steps_at, minima_at, half, many, target = args
        emit = _LineEmitter(builder, step)
        middle = emit.splat(half)

        def body(index: Any, total: Any) -> Any:
            factor, value = emit.halves(steps_at, index), emit.numbers(source, index)
            builder.store(builder.fmul(value, factor), emit.pointer(target, index), align=4)
            offset = builder.call(emit.fma, [middle, factor, emit.halves(minima_at, index)])
            return builder.call(emit.fma, [value, offset, total])

        return emit.lane_sum(emit.each(many, body))

    return signature, codegen


@intrinsic(prefer_literal=True)
def _scale(typing_context: Any, stride: Any, x: Any, steps: Any, count: Any, out: Any) -> Any:
    if not isinstance(stride, types.IntegerLiteral):
        return None
    step = stride.literal_value
    signature = types.void(stride, types.int64, types.int64, types.int64, types.int64)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, source, steps_at, many, target = args
        emit = _LineEmitter(builder, step)

        def body(index: Any, total: Any) -> Any:
            value = builder.fmul(emit.numbers(source, index), emit.halves(steps_at, index))
            builder.store(value, emit.pointer(target, index), align=4)
            return total

        emit.each(many, body)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _unfold(typing_context: Any, x: Any, steps: Any, minima: Any, low: Any, total: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        source, steps_at, minima_at, half, weight, many = args
        emit = _LineEmitter(builder, 1)
        middle, sums = emit.splat(half), emit.splat(weight)

        def body(index: Any, total: Any) -> Any:
            factor = emit.halves(steps_at, index)
            offset = builder.call(emit.fma, [middle, factor, emit.halves(minima_at, index)])
            scaled = builder.fmul(emit.numbers(source, index), factor)
            builder.store(builder.call(emit.fma, [sums, offset, scaled]), emit.pointer(source, index), align=4)
            return total

        emit.each(many, body)
        return context.get_dummy_value()

    integer, number = types.int64, types.float32
    return types.void(integer, integer, integer, number, number, integer), codegen


@intrinsic
def _sum(typing_context: Any, x: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emit = _LineEmitter(builder, 1)
        return emit.lane_sum(emit.each(args[1], lambda index, total: builder.fadd(total, emit.numbers(args[0], index))))

    return types.float32(types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def _put(typing_context: Any, added: Any, x: Any, number: Any, count: Any) -> Any:
    if not isinstance(added, types.IntegerLiteral):
        return None
    to_what_is_there = added.literal_value

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _, target, number, many = args
        emit = _LineEmitter(builder, 1)
        numbers = emit.splat(number)

        def body(index: Any, total: Any) -> Any:
            value = builder.fadd(emit.numbers(target, index), numbers) if to_what_is_there else numbers
            builder.store(value, emit.pointer(target, index), align=4)
            return total

        emit.each(many, body)
        return context.get_dummy_value()

    return types.void(added, types.int64, types.float32, types.int64), codegen


@intrinsic
def load_half(typing_context: Any, address: Any) -> Any:
    """The float16 at an address, as float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.load(builder.inttoptr(args[0], ir.HalfType().as_pointer()), align=2), _F32)

    return types.float32(types.int64), codegen


@numba.njit(nogil=True)
def line_sum(x: int, count: int) -> Any:
    """Sum of `count` float32 at an address."""
    total = _sum(x, count)
    for i in range(count - count % LANES, count):
        total += load(x + 4 * i)
    return total


@numba.njit(nogil=True)
def scaled_line(stride: int, x: int, steps: int, count: int, out: int) -> None:
    """out[i] = x[i] * steps[i * stride], float32 and float16 addresses; `out` may be x."""
    whole = count - count % LANES
    if stride == 1:
        _scale(1, x, steps, whole, out)
    elif stride == 2:
        _scale(2, x, steps, whole, out)
    elif stride == 4:
        _scale(4, x, steps, whole, out)
    else:
        whole = 0
    for i in range(whole, count):
        store(out + 4 * i, load(x + 4 * i) * load_half(steps + 2 * i * stride))


@numba.njit(nogil=True)
def folded_line(stride: int, x: int, steps: int, minima: int, low: float, count: int, out: int) -> Any:
    """As `scaled_line`; returns the sum of x[i] * (minima[i * stride] + low * steps[i * stride])."""
    whole, total = count - count % LANES, Float(0)
    if stride == 1:
        total = _fold(1, x, steps, minima, low, whole, out)
    elif stride == 2:
        total = _fold(2, x, steps, minima, low, whole, out)
    elif stride == 4:
        total = _fold(4, x, steps, minima, low, whole, out)
    else:
        whole = 0
    for i in range(whole, count):
        step, minimum = load_half(steps + 2 * i * stride), load_half(minima + 2 * i * stride)
        value = load(x + 4 * i)
        store(out + 4 * i, value * step)
        total = fma(value, fma(low, step, minimum), total)
    return total


@numba.njit(nogil=True)
def unfolded_line(x: int, steps: int, minima: int, low: float, total: float, count: int) -> None:
    """x[i] = x[i] * steps[i] + total * (minima[i] + low * steps[i]), in place; `count` a multiple of 16."""
    _unfold(x, steps, minima, low, total, count)


@numba.njit(nogil=True)
def fill_line(x: int, number: float, count: int) -> None:
    """x[i] = number; `count` a multiple of 16."""
    _put(0, x, number, count)


@numba.njit(nogil=True)
def raise_line(x: int, number: float, count: int) -> None:
    """x[i] += number; `count` a multiple of 16."""
    _put(1, x, number, count)
