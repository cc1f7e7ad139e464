"""Rows of a key tile [channels, 64], whose lanes are tokens, as code generators see them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.simd import LANES

I64 = ir.IntType(64)
NUMBERS = ir.VectorType(ir.FloatType(), LANES)
ROW_BYTES = 4 * BLOCK
ROW_VECTORS = BLOCK // LANES


def vector_fma(builder: Any) -> Any:
    """The function a * b + c of vectors, rounded once."""
    kind = ir.FunctionType(NUMBERS, [NUMBERS] * 3)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")


def vector_at(builder: Any, row: Any, number: int) -> Any:
    """Pointer to a vector of the row that begins at an address."""
    at = builder.add(row, ir.Constant(I64, 4 * LANES * number))
    return builder.inttoptr(at, NUMBERS.as_pointer())
