"""Packed codes decoded into a tile in cache, for what cannot be multiplied while it is in registers.

A code of up to 4 bits, or of 8, stands for levels[code] * step + offset; see `products` for how codes lie in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from vcbench.engine.kernels.cpu.codes.products import TABLE, TABLE8, CodeTileEmitter, bits_of, in_vectors, plane_code
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.simd import LANES, fma, half_as_float, load, store

_I64, _F32 = ir.IntType(64), ir.FloatType()
_NUMBERS = ir.VectorType(_F32, LANES)


def level_table(levels: NDArray[Any], bits: int, symmetric: bool) -> tuple[int, NDArray[np.float32]]:
    """Form of codes of `bits` bits and what they stand for before they are scaled, at least 16 numbers.

    levels: those of a codebook, or empty where a code counts steps, from the minimum or around 0.
    """
    if not levels.size:
        levels = np.arange(1 << bits, dtype=np.float32) - np.float32(symmetric and 1 << (bits - 1))
    return (bits if bits <= 4 else TABLE8), np.tile(levels, max(1, TABLE >> bits))


class _TableEmitter(CodeTileEmitter):
    """Emits the decoding of lines of 64 codes, each with a table of 16 numbers of its own."""

    def __init__(self, builder: Any, form: int, args: Any) -> None:
        codes, pitch, tables, out, lines = args
        none, width = ir.Constant(_I64, 0), ir.Constant(_I64, BLOCK)
        super().__init__(builder, 0, form, (none, none, none, width, codes, pitch, tables, out, width, lines, width))
        self.tables = tables

    def line(self, k: Any, columns: list[Any]) -> list[Any]:
        build = self.builder
        self.decoder.levels = build.add(self.tables, build.mul(k, ir.Constant(_I64, 4 * TABLE)))
        self.decoder.read_table()
        return super().line(k, columns)

    def strip(self, x: Any, vectors: int) -> None:
        columns = self.columns(x, vectors)
        self.prepare(columns)

        def body(k: Any) -> None:
            start = self.builder.mul(k, self.ldc)
            for column, number in zip(columns, self.line(k, columns), strict=True):
                place = self.address(self.c, self.builder.add(start, column), _NUMBERS)
                self.builder.store(number, place, align=4)

        _each_line(self.builder, self.depth, body)


def _each_line(builder: Any, count: Any, body: Callable[[Any], None]) -> None:
    """Emits a loop over lines 0 .. count - 1, at least one; the body stays in one basic block."""
    head = builder.block
    loop, done = builder.append_basic_block("lines"), builder.append_basic_block("lines.done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_I64)
    body(k)
    following = builder.add(k, ir.Constant(_I64, 1))
    k.add_incoming(ir.Constant(_I64, 0), head)
    k.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)


class _DecodeEmitter(CodeTileEmitter):
    """Emits the decoding of lines of codes, strip by strip of columns."""

    def __init__(self, builder: Any, form: int, by_lane: bool, args: Any) -> None:
        codes, pitch, levels, steps, offsets, stride, part, group, out, lines, width = args
        super().__init__(
            builder, 0, form, (steps, stride, part, group, codes, pitch, levels, out, width, lines, width)
        )  # fmt: skip
        self.by_lane, self.offsets_after = by_lane, builder.sub(offsets, steps)

    def prepare(self, columns: list[Any]) -> None:
        if not self.by_lane:
            super().prepare(columns)
            return
        build = self.builder
        self.decoder.place(self.width, columns, self.constant)
        offsets = build.add(self.a, self.offsets_after)
        self.lanes = [
            [build.load(self.address(base, x, _NUMBERS), align=4) for base in (self.a, offsets)] for x in columns
        ]

    def scales(self, vector: int, at: Any) -> list[Any]:
        """Step and offset of a vector of the line whose steps begin at element `at`."""
        if self.by_lane:
            return self.lanes[vector]
        build = self.builder
        bases = self.bases[vector], build.add(self.bases[vector], self.offsets_after)
        return [self.splat(build.load(self.address(base, at, _F32), align=4)) for base in bases]

    def strip(self, x: Any, vectors: int) -> None:
        build = self.builder
        columns = self.columns(x, vectors)
        self.prepare(columns)

        def body(k: Any) -> None:
            start, at = build.mul(k, self.ldc), build.mul(k, self.lda)
            for vector, numbers in enumerate(self.line(k, columns)):
                value = build.call(self.fma, [numbers, *self.scales(vector, at)])
                build.store(value, self.address(self.c, build.add(start, columns[vector]), _NUMBERS), align=4)

        _each_line(build, self.depth, body)


@intrinsic(prefer_literal=True)
def _decode(
    typing_context: Any, form: Any, by_lane: Any, codes: Any, pitch: Any, levels: Any, steps: Any, offsets: Any,
    stride: Any, part: Any, group: Any, out: Any, lines: Any, width: Any,
) -> Any:  # fmt: skip
    if not isinstance(form, types.IntegerLiteral) or not isinstance(by_lane, types.IntegerLiteral):
        return None
    kind, lanes = form.literal_value, bool(by_lane.literal_value)
    signature = types.void(form, by_lane, *[types.int64] * 11)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emitter = _DecodeEmitter(builder, kind, lanes, args[2:])
        if emitter.decoder.bits < 8:
            emitter.short_or_any()
        else:
            emitter.sweep_all()
        return context.get_dummy_value()

    return signature, codegen


@intrinsic(prefer_literal=True)
def _decode_tables(
    typing_context: Any, form: Any, codes: Any, pitch: Any, tables: Any, out: Any, lines: Any
) -> Any:  # fmt: skip
    if not isinstance(form, types.IntegerLiteral):
        return None
    kind = form.literal_value

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emitter = _TableEmitter(builder, kind, args[1:])
        emitter.short_lines()
        return context.get_dummy_value()

    return types.void(form, *[types.int64] * 5), codegen


@numba.njit(nogil=True)
def decode_by_table(form: int, codes: int, tables: int, out: int, lines: int) -> None:
    """out[l, x] = tables[l][codes[l, x]] for `lines` >= 1 lines of 64 codes of 2, 3 or 4 bits, tables of 16 numbers."""
    pitch = BLOCK * bits_of(form) // 8
    if form == 4:
        _decode_tables(4, codes, pitch, tables, out, lines)
    elif form == 3:
        _decode_tables(3, codes, pitch, tables, out, lines)
    else:
        _decode_tables(2, codes, pitch, tables, out, lines)


def _lines_function(form: int, by_lane: int) -> Any:
    @numba.njit(nogil=True)
    def run(
        codes: int, pitch: int, levels: int, steps: int, offsets: int, stride: int, part: int, group: int, out: int,
        lines: int, width: int,
    ) -> None:  # fmt: skip
        _decode(form, by_lane, codes, pitch, levels, steps, offsets, stride, part, group, out, lines, width)

    return run


_lanes_1, _lanes_2, _lanes_3, _lanes_4, _lanes_8 = (_lines_function(form, 1) for form in (1, 2, 3, 4, TABLE8))
_lines_1, _lines_2, _lines_3, _lines_4, _lines_8 = (_lines_function(form, 0) for form in (1, 2, 3, 4, TABLE8))


@numba.njit(nogil=True)
def decode_by_lane(form: int, codes: int, levels: int, steps: int, offsets: int, out: int, lines: int) -> None:
    """out[l, x] = levels[codes[l, x]] * steps[x] + offsets[x] for `lines` >= 1 lines of 64 codes; all are addresses."""
    pitch = BLOCK * bits_of(form) // 8
    if form == 4:
        _lanes_4(codes, pitch, levels, steps, offsets, 0, 0, BLOCK, out, lines, BLOCK)
    elif form == 3:
        _lanes_3(codes, pitch, levels, steps, offsets, 0, 0, BLOCK, out, lines, BLOCK)
    elif form == 2:
        _lanes_2(codes, pitch, levels, steps, offsets, 0, 0, BLOCK, out, lines, BLOCK)
    elif form == 1:
        _lanes_1(codes, pitch, levels, steps, offsets, 0, 0, BLOCK, out, lines, BLOCK)
    else:
        _lanes_8(codes, pitch, levels, steps, offsets, 0, 0, BLOCK, out, lines, BLOCK)


@numba.njit(nogil=True)
def code_at(form: int, line: int, width: int, x: int) -> Any:
    """Code x of a line of `width` codes."""
    plane = 2 if form == 3 else bits_of(form)
    size = width * plane // 8
    code = plane_code(line, size, plane, x)
    if form == 3:
        code |= plane_code(line + size, width // 8, 1, x) << np.int32(2)
    return code


@numba.njit(nogil=True)
def decode_one_by_one(
    form: int, codes: int, levels: int, steps: int, offsets: int, stride: int, part: int, group: int, out: int,
    lines: int, width: int,
) -> None:  # fmt: skip
    """`decode_by_line` for groups or widths that do not lie in vectors."""
    pitch = width * bits_of(form) // 8
    for line in range(lines):
        for x in range(width):
            code = code_at(form, codes + line * pitch, width, x)
            place = 4 * (line * stride + x // group * part)
            value = fma(load(levels + 4 * np.int64(code)), load(steps + place), load(offsets + place))
            store(out + 4 * (line * width + x), value)


@numba.njit(nogil=True)
def decode_by_line(
    form: int, codes: int, levels: int, steps: int, offsets: int, stride: int, part: int, group: int, out: int,
    lines: int, width: int,
) -> None:  # fmt: skip
    """out[l, x] = levels[codes[l, x]] * steps[l * stride + x // group * part] + offsets[the same].

    codes: `lines` lines of `width`; all are addresses. Steps and offsets are read for the last columns too that pad a
    line, be they of any group.
    """
    if lines <= 0:
        return
    pitch = width * bits_of(form) // 8
    if not (width == BLOCK or in_vectors(form, width)) or (group < width and group % LANES):
        decode_one_by_one(form, codes, levels, steps, offsets, stride, part, group, out, lines, width)
    elif form == 4:
        _lines_4(codes, pitch, levels, steps, offsets, stride, part, group, out, lines, width)
    elif form == 3:
        _lines_3(codes, pitch, levels, steps, offsets, stride, part, group, out, lines, width)
    elif form == 2:
        _lines_2(codes, pitch, levels, steps, offsets, stride, part, group, out, lines, width)
    elif form == 1:
        _lines_1(codes, pitch, levels, steps, offsets, stride, part, group, out, lines, width)
    else:
        _lines_8(codes, pitch, levels, steps, offsets, stride, part, group, out, lines, width)


@intrinsic
def widened_line(typing_context: Any, halves: Any, out: Any) -> Any:
    """out[i] = halves[i], float16, for a block's 64; addresses."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        source, target = args
        kind = ir.VectorType(ir.HalfType(), LANES)
        for start in range(0, BLOCK, LANES):
            at = builder.add(source, ir.Constant(_I64, 2 * start))
            wide = builder.fpext(builder.load(builder.inttoptr(at, kind.as_pointer()), align=2), _NUMBERS)
            to = builder.add(target, ir.Constant(_I64, 4 * start))
            builder.store(wide, builder.inttoptr(to, _NUMBERS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@numba.njit(nogil=True)
def widened(halves: Any, missing: float, out: Any) -> None:
    """out[i] = halves[i], float16 bits; `missing` in place of halves where there are none at all."""
    if halves.shape[0] == 0:
        out[:] = missing
        return
    for i in range(halves.shape[0]):
        out[i] = half_as_float(halves[i])


@numba.njit(nogil=True)
def put_page_tokens(page: int, ready: int, by_column: bool, tile: Any) -> None:
    """Tokens `ready` .. 63 of a page's keys (columns of tile: [D, 64]) or values (rows of tile: [64, D])."""
    rows, columns = tile.shape
    for r in range(0 if by_column else ready, rows):
        for c in range(ready if by_column else 0, columns):
            tile[r, c] = load(page + 4 * (r * columns + c))
