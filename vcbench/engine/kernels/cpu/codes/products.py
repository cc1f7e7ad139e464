"""Products with packed codes: each code becomes a number in a register, right where it is multiplied.

Of a line of n codes of b bits (1, 2, 4 or 8) in W = b * n / 8 bytes, code i lies in byte i mod W, shifted by
b * (i // W): unpacking runs over vector lanes. 3 bits are two such planes, the lower 2 bits of all codes, then the
upper ones.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from vcbench.engine.kernels.cpu.separate import Separate, separate
from vcbench.engine.kernels.cpu.simd import LANES, MAX_TILE_ROWS, STRIP, TileEmitter, address, fma_rows, load

SIGNED = 8
"""Codes c of 8 bits that stand for c - 128."""
FLOAT8 = 108
"""Codes of 8 bits that are e4m3 numbers."""
TABLE8 = 208
"""Codes of 8 bits, looked up one by one."""
SHORT_LINE = 64
"""Codes of a line of keys: the tokens of a block."""
TABLE = 16
"""Entries of a table that a register holds: shorter ones repeat."""

_FETCH_DATA_TO_READ = (0, 3, 1)
"""Of `llvm.prefetch`: to read, into the nearest cache, data."""

_FEATURES = llvm.get_host_cpu_features()
_PERMUTE = next((name for name in ("avx512f", "avx2") if _FEATURES.get(name, False)), "")

_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_BYTES, _WORDS, _NUMBERS = (ir.VectorType(kind, LANES) for kind in (_I8, _I32, _F32))


@register_jitable
def bits_of(form: int) -> int:
    """Bits of a code. A form is 1, 2, 3 or 4, whose codes are looked up in a table of 16, or one of those above."""
    return form % 100


class Decoder:
    """Emits the numbers that the codes of one run stand for."""

    def __init__(self, builder: Any, form: int, levels: Any) -> None:
        self.builder, self.form, self.bits = builder, form, form % 100
        self.levels = levels
        if self.form <= 4:
            self.read_table()

    def read_table(self) -> None:
        """Puts the 16 numbers at `levels` into a register."""
        self.table = self.builder.load(self.builder.inttoptr(self.levels, _NUMBERS.as_pointer()), align=4)

    def place(self, width: Any, columns: list[Any], constant: list[int]) -> None:
        """Emits where the codes of a strip lie in a line of `width` codes.

        `constant`: the columns where they are known here, in lines of `SHORT_LINE` codes; else empty.
        """
        low = 2 if self.bits == 3 else self.bits
        if constant:
            self.places = [self.constant_place(0, low, x) for x in constant]
            self.upper_places = [self.constant_place(SHORT_LINE // 4, 1, x) for x in constant]
            return
        self.places = [self.place_of(_int(0), width, low, x) for x in columns]
        if self.bits == 3:
            above = self.builder.lshr(width, _int(2))
            self.upper_places = [self.place_of(above, width, 1, x) for x in columns]

    def constant_place(self, plane: int, bits: int, x: int) -> tuple[list[Any], Any]:
        """As `place_of`."""
        size = SHORT_LINE * bits // 8
        pieces = 2 if bits == 1 else 1
        offsets = [_int(plane + (x + piece * LANES // pieces) % size) for piece in range(pieces)]
        return offsets, _words([bits * ((x + lane) // size) for lane in range(LANES)])

    def place_of(self, plane: Any, width: Any, bits: int, x: Any) -> tuple[list[Any], Any]:
        """Byte offsets in a line, one for 16 codes or one for each 8 of them, and the shifts of all 16."""
        build = self.builder
        size = build.lshr(build.mul(width, _int(bits)), _int(3))
        pieces = 2 if bits == 1 else 1
        offsets, shifts = [], ir.Constant(_WORDS, ir.Undefined)
        for piece in range(pieces):
            at = build.add(x, _int(piece * LANES // pieces))
            offsets.append(build.add(plane, build.urem(at, size)))
            shift = build.trunc(build.mul(build.udiv(at, size), _int(bits)), _I32)
            for lane in range(piece * LANES // pieces, (piece + 1) * LANES // pieces):
                shifts = build.insert_element(shifts, shift, ir.Constant(_I32, lane))
        return offsets, shifts

    def numbers(self, line: Any, vector: int) -> Any:
        """The strip's codes 16 * vector .. + 15 of a line, as float32."""
        build = self.builder
        if self.form == SIGNED:
            raw = build.xor(self.bytes(line, self.places[vector][0]), ir.Constant(_BYTES, [128] * LANES))
            return build.sitofp(build.sext(raw, _WORDS), _NUMBERS)
        codes = self.plane(line, self.places[vector])
        if self.form == FLOAT8:
            return self.float8(codes)
        if self.bits == 3:
            upper = build.and_(self.plane(line, self.upper_places[vector]), _words([1] * LANES))
            codes = build.or_(build.and_(codes, _words([3] * LANES)), build.shl(upper, _words([2] * LANES)))
        return self.looked_up(codes)

    def bytes(self, line: Any, offsets: list[Any]) -> Any:
        build, kind = self.builder, ir.VectorType(_I8, LANES // len(offsets))
        parts = [build.load(build.inttoptr(build.add(line, offset), kind.as_pointer()), align=1) for offset in offsets]
        return parts[0] if len(parts) == 1 else build.shuffle_vector(*parts, _words(list(range(LANES))))

    def plane(self, line: Any, place: tuple[list[Any], Any]) -> Any:
        """Codes in the low bits of 32-bit words; bits above them are not cleared."""
        wide = self.builder.zext(self.bytes(line, place[0]), _WORDS)
        unshifted = self.bits == 8 or str(place[1]) == str(_words([0] * LANES))
        return wide if unshifted else self.builder.lshr(wide, place[1])

    def float8(self, codes: Any) -> Any:
        """Exponent and mantissa moved to where float32 has them, which is too small by 2**120."""
        build = self.builder
        sign = build.shl(build.and_(codes, _words([0x80] * LANES)), _words([24] * LANES))
        rest = build.shl(build.and_(codes, _words([0x7F] * LANES)), _words([20] * LANES))
        small = build.bitcast(build.or_(sign, rest), _NUMBERS)
        return build.fmul(small, ir.Constant(_NUMBERS, [float(2.0**120)] * LANES))

    def looked_up(self, index: Any) -> Any:
        """levels[index]; of a table of 16 only the index's low 4 bits count."""
        if self.form != TABLE8 and _PERMUTE == "avx512f":
            kind = ir.FunctionType(_NUMBERS, [_NUMBERS, _WORDS])
            permute = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.x86.avx512.permvar.sf.512")
            return self.builder.call(permute, [self.table, index])
        if self.form != TABLE8 and _PERMUTE == "avx2":
            return self.permuted_by_halves(index)
        return self.gathered(index)

    def permuted_by_halves(self, index: Any) -> Any:
        build, half = self.builder, LANES // 2
        number, word = ir.VectorType(_F32, half), ir.VectorType(_I32, half)
        permute = cgutils.get_or_insert_function(
            build.module, ir.FunctionType(number, [number, word]), "llvm.x86.avx2.permps"
        )

        def part(vector: Any, first: int) -> Any:
            lanes = ir.Constant(word, list(range(first, first + half)))
            return build.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)

        low, high = part(self.table, 0), part(self.table, half)
        found = []
        for first in (0, half):
            lanes = part(index, first)
            upper = build.icmp_unsigned("!=", build.and_(lanes, ir.Constant(word, [half] * half)),
                                        ir.Constant(word, [0] * half))  # fmt: skip
            found.append(build.select(upper, build.call(permute, [high, lanes]), build.call(permute, [low, lanes])))
        return build.shuffle_vector(found[0], found[1], _words(list(range(LANES))))

    def gathered(self, index: Any) -> Any:
        build = self.builder
        numbers = ir.Constant(_NUMBERS, ir.Undefined)
        last = 255 if self.form == TABLE8 else TABLE - 1
        clean = build.and_(index, _words([last] * LANES))
        for lane in range(LANES):
            place = ir.Constant(_I32, lane)
            at = build.shl(build.zext(build.extract_element(clean, place), _I64), _int(2))
            level = build.load(build.inttoptr(build.add(self.levels, at), _F32.as_pointer()))
            numbers = build.insert_element(numbers, level, place)
        return numbers


class CodeTileEmitter(TileEmitter):
    """`fma_tile` with B in codes, and an A for each group of columns."""

    def __init__(self, builder: Any, rows: int, form: int, args: Any) -> None:
        a, lda, self.part, self.group, codes, self.pitch, levels, c, ldc, depth, width = args
        super().__init__(builder, rows, (a, lda, codes, c, ldc, depth, width))
        self.decoder = Decoder(builder, form, levels)
        self.constant: list[int] = []

    def prepare(self, columns: list[Any]) -> None:
        build = self.builder
        self.decoder.place(self.width, columns, self.constant)
        size = build.shl(self.part, _int(2))
        groups = [self.group_of(x) for x in self.constant] or [build.udiv(x, self.group) for x in columns]
        self.bases = [build.add(self.a, build.mul(group, size)) for group in groups]

    def group_of(self, column: int) -> Any:
        """The group of a column of a short line, by comparing: a division takes as long as two lines of codes."""
        build, index = self.builder, _int(0)
        for count in range(1, column // LANES + 1):
            begins = build.mul(self.group, _int(count))
            index = build.add(index, build.zext(build.icmp_unsigned("<=", begins, _int(column)), _I64))
        return index

    def line(self, k: Any, columns: list[Any]) -> list[Any]:
        line = self.builder.add(self.b, self.builder.mul(k, self.pitch))
        self.fetch_ahead(line)
        return [self.decoder.numbers(line, vector) for vector in range(len(columns))]

    def fetch_ahead(self, line: Any) -> None:
        """Asks for the line of the block that follows in memory, which is met next and comes from far away."""
        build = self.builder
        pointer = build.inttoptr(build.add(line, build.mul(self.depth, self.pitch)), _I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        fetch = build.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        build.call(fetch, [pointer, *(ir.Constant(_I32, flag) for flag in _FETCH_DATA_TO_READ)])

    def short_or_any(self) -> None:
        """Every column of lines of `SHORT_LINE` codes, which all keys have, or of any others."""
        build = self.builder
        short, other, end = (build.append_basic_block(name) for name in ("short", "other", "joined"))
        build.cbranch(build.icmp_signed("==", self.width, _int(SHORT_LINE)), short, other)
        build.position_at_end(short)
        self.short_lines()
        build.branch(end)
        build.position_at_end(other)
        self.constant = []
        self.sweep_all()
        build.branch(end)
        build.position_at_end(end)

    def short_lines(self) -> None:
        """Every column of lines of `SHORT_LINE` codes."""
        for x in range(0, SHORT_LINE, STRIP):
            self.constant = list(range(x, x + STRIP, LANES))
            self.strip(_int(x), STRIP // LANES)

    def factors(self, row: int, k: Any, vectors: int) -> list[Any]:
        at = self.row_of(row, self.lda, k)
        return [self.splat(self.builder.load(self.address(self.bases[v], at, _F32))) for v in range(vectors)]


def _int(value: int) -> Any:
    return ir.Constant(_I64, value)


def _words(values: list[int]) -> Any:
    return ir.Constant(_WORDS, values)


@intrinsic
def load_byte(typing_context: Any, address: Any) -> Any:
    """The byte at an address, as int32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(args[0], _I8.as_pointer())), _I32)

    return types.int32(types.int64), codegen


@intrinsic(prefer_literal=True)
def code_tile(
    typing_context: Any, rows: Any, form: Any, a: Any, lda: Any, part: Any, group: Any, codes: Any, pitch: Any,
    levels: Any, c: Any, ldc: Any, depth: Any, width: Any,
) -> Any:  # fmt: skip
    """C[r, x] += sum of A[x // group][r, k] * number(codes[k, x]), summed as in `simd.fma_tile`.

    rows, form: literals. A: [groups, rows, depth], `part` floats from group to group, a multiple of 16 columns each.
    codes: [depth, bytes], `pitch` bytes a line of `width` codes, which `in_vectors` holds for. levels: address of the
    table, repeated to 16 entries.
    """
    if not isinstance(rows, types.IntegerLiteral) or not isinstance(form, types.IntegerLiteral):
        return None
    count, kind = rows.literal_value, form.literal_value
    signature = types.void(rows, form, *[types.int64] * 11)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        emitter = CodeTileEmitter(builder, count, kind, args[2:])
        if emitter.decoder.bits < 8:
            emitter.short_or_any()
        else:
            emitter.sweep_all()
        return context.get_dummy_value()

    return signature, codegen


def _products(form: int) -> Separate:
    @separate(12)
    def products(
        rows: int, a: int, lda: int, part: int, group: int, codes: int, pitch: int, levels: int, c: int, ldc: int,
        depth: int, width: int,
    ) -> None:  # fmt: skip
        done = 0 if depth > 0 else rows
        while done < rows:
            at, to, rest = a + 4 * done * lda, c + 4 * done * ldc, rows - done
            if rest >= 6 and MAX_TILE_ROWS >= 6:
                code_tile(6, form, at, lda, part, group, codes, pitch, levels, to, ldc, depth, width)
                done += 6
            elif rest >= 3:
                code_tile(3, form, at, lda, part, group, codes, pitch, levels, to, ldc, depth, width)
                done += 3
            elif rest == 2:
                code_tile(2, form, at, lda, part, group, codes, pitch, levels, to, ldc, depth, width)
                done += 2
            else:
                code_tile(1, form, at, lda, part, group, codes, pitch, levels, to, ldc, depth, width)
                done += 1

    return products


@register_jitable
def in_vectors(form: int, width: int) -> bool:
    """Whether each 16 codes of a line lie in consecutive bytes (each 8 of an upper plane), with one shift.

    Lines of single bits are rare, and left out.
    """
    bits = bits_of(form)
    return bits == 8 or (bits > 1 and width % 64 == 0) or (bits == 4 and width % 32 == 0)


@numba.njit(nogil=True)
def plane_code(line: int, size: int, bits: int, index: int) -> Any:
    """Code `index` of a plane of `size` bytes."""
    return (load_byte(line + index % size) >> np.int32(bits * (index // size))) & np.int32((1 << bits) - 1)


def _products_one_by_one(form: int) -> Separate:
    plane_bits = 2 if form == 3 else form

    @separate(12)
    def products(
        rows: int, a: int, lda: int, part: int, group: int, codes: int, pitch: int, levels: int, c: int, ldc: int,
        depth: int, width: int,
    ) -> None:  # fmt: skip
        tile = np.empty(depth * group, np.float32)
        size = width * plane_bits // 8
        for first in range(0, width, group):
            columns = min(group, width - first)
            for k in range(depth):
                for x in range(columns):
                    line = codes + k * pitch
                    code = plane_code(line, size, plane_bits, first + x)
                    if form == 3:
                        code |= plane_code(line + size, width // 8, 1, first + x) << np.int32(2)
                    tile[k * columns + x] = load(levels + 4 * np.int64(code))
            fma_rows(
                rows, a + 4 * part * (first // group), lda, address(tile), c + 4 * first, ldc, depth, columns
            )  # fmt: skip

    return products


_BY_VECTORS = {form: _products(form) for form in (2, 3, 4, SIGNED, FLOAT8, TABLE8)}
_ONE_BY_ONE = {form: _products_one_by_one(form) for form in (1, 2, 3, 4)}


def products_of(form: int, width: int) -> Separate:
    """`code_tile` for any number of rows, a form and lines of `width` codes; compiled when it is needed.

    Where the codes of a line do not lie in vectors, each group is decoded to memory.
    """
    return (_BY_VECTORS if in_vectors(form, width) else _ONE_BY_ONE)[form]
