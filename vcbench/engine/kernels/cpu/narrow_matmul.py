"""Matrix products with weights of 8 or 16 bits, widened in registers where they are multiplied.

Drafts need not be exact, so they need not read 32 bits a weight. Activations and sums stay float32, in the written
order of `linear`: a row's result does not depend on the others here either.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from vcbench.engine.kernels.cpu.matmul import OUTPUTS
from vcbench.engine.kernels.cpu.separate import Separate, call_at, separate
from vcbench.engine.kernels.cpu.simd import LANES, MAX_TILE_ROWS, TileEmitter, address
from vcbench.engine.kernels.cpu.workers import spread

_DEPTH = 256
"""Inputs of a run: 16 KiB of 8-bit weights."""
_ROWS = 96

_NUMBERS, _WORDS = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(32), LANES)


class _NarrowTile(TileEmitter):
    """B of signed 8-bit or of bfloat16 numbers."""

    def __init__(self, builder: Any, rows: int, size: int, args: Any) -> None:
        super().__init__(builder, rows, args)
        self.size = size

    def line(self, k: Any, columns: list[Any]) -> list[Any]:
        start = self.builder.mul(k, self.width)
        return [self.widened(self.builder.add(start, column)) for column in columns]

    def widened(self, element: Any) -> Any:
        build, kind = self.builder, ir.VectorType(ir.IntType(8 * self.size), LANES)
        place = build.add(self.b, build.mul(element, ir.Constant(ir.IntType(64), self.size)))
        raw = build.load(build.inttoptr(place, kind.as_pointer()), align=self.size)
        if self.size == 1:
            return build.sitofp(build.sext(raw, _WORDS), _NUMBERS)
        upper = build.shl(build.zext(raw, _WORDS), ir.Constant(_WORDS, [16] * LANES))
        return build.bitcast(upper, _NUMBERS)


@intrinsic(prefer_literal=True)
def _tile(
    typing_context: Any, rows: Any, size: Any, a: Any, lda: Any, b: Any, c: Any, ldc: Any, depth: Any, width: Any
) -> Any:
    if not isinstance(rows, types.IntegerLiteral) or not isinstance(size, types.IntegerLiteral):
        return None
    count, bytes_each = rows.literal_value, size.literal_value

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _NarrowTile(builder, count, bytes_each, args[2:]).sweep_all()
        return context.get_dummy_value()

    return types.void(rows, size, *[types.int64] * 7), codegen


def _products(size: int) -> Separate:
    @separate(8)
    def products(rows: int, a: int, lda: int, b: int, c: int, ldc: int, depth: int, width: int) -> None:
        done = 0
        while done < rows:
            at, to, rest = a + 4 * done * lda, c + 4 * done * ldc, rows - done
            if rest >= 6 and MAX_TILE_ROWS >= 6:
                _tile(6, size, at, lda, b, to, ldc, depth, width)
                done += 6
            elif rest >= 4 and MAX_TILE_ROWS >= 6:
                _tile(4, size, at, lda, b, to, ldc, depth, width)
                done += 4
            elif rest >= 2:
                _tile(2, size, at, lda, b, to, ldc, depth, width)
                done += 2
            else:
                _tile(1, size, at, lda, b, to, ldc, depth, width)
                done += 1

    return products


_PRODUCTS = {size: _products(size) for size in (1, 2)}


def products_of(size: int) -> int:
    """Address of the products with weights of so many bytes each, for `narrow_linear`."""
    return _PRODUCTS[size].address


@numba.njit(nogil=True)
def _block_product(x: Any, weight: Any, scale: Any, bias: Any, products: int, out: Any, block: int) -> None:
    """The outputs of one block."""
    n, outputs = out.shape
    depth, line = x.shape[1], weight.shape[2]
    acc = np.empty((min(n, _ROWS), OUTPUTS), np.float32)
    first_output = block * OUTPUTS
    width = min(OUTPUTS, outputs - first_output)
    for first in range(0, n, _ROWS):
        rows = min(_ROWS, n - first)
        acc[:rows] = np.float32(0)
        for k in range(0, depth, _DEPTH):
            at, b = address(x) + 4 * (first * depth + k), address(weight[block]) + k * line
            call_at(products, (rows, at, depth, b, address(acc), OUTPUTS, min(_DEPTH, depth - k), OUTPUTS))
        for r in range(rows):
            for j in range(width):
                number = acc[r, j] * scale[first_output + j]
                out[first + r, first_output + j] = number + bias[first_output + j] if bias.size else number


@numba.njit(nogil=True, cache=True)
def narrow_linear(x: Any, weight: Any, scale: Any, bias: Any, products: int, out: Any) -> None:
    """out = x @ (W * scale)^T + bias.

    x: [n, K], float32. weight: [blocks, K, 64 * size], bytes of int8 (size 1) or bfloat16 (size 2); products: see
    `products_of`. scale: [blocks * 64]. bias: [blocks * 64] or empty. out: [n, outputs].
    """
    spread(weight.shape[0], _block_product, (x, weight, scale, bias, products, out))
