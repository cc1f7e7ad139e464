"""Matrix products with weights in blocks of 64 outputs.

Each output is a sum over runs of 64 inputs, each run summed by itself in ascending order, then added in ascending
order: one long sum would round half as much again.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.cpu.simd import address, fma_rows
from vcbench.engine.kernels.cpu.workers import spread

OUTPUTS = 64
_DEPTH = 64
"""Inputs of a run: 16 KiB of weights, so that they stay in the nearest cache while rows pass over them."""
_ROWS = 96


@numba.njit(nogil=True)
def block_rows(x: Any, first: int, rows: int, weight: Any, acc: Any) -> None:
    """acc[:rows] += x[first : first + rows] @ weight. weight: [K, 64]; acc: [rows, 64]."""
    depth = x.shape[1]
    for k in range(0, depth, _DEPTH):
        fma_rows(
            rows, address(x) + 4 * (first * depth + k), depth, address(weight) + 4 * k * OUTPUTS,
            address(acc), OUTPUTS, min(_DEPTH, depth - k), OUTPUTS,
        )  # fmt: skip


@numba.njit(nogil=True)
def block_product(x: Any, weight: Any, bias: Any, out: Any, block: int) -> None:
    """The outputs of one block of `linear`."""
    n, outputs = out.shape
    acc = np.empty((min(n, _ROWS), OUTPUTS), np.float32)
    first_output = block * OUTPUTS
    width = min(OUTPUTS, outputs - first_output)
    for first in range(0, n, _ROWS):
        rows = min(_ROWS, n - first)
        for r in range(rows):
            for j in range(OUTPUTS):
                acc[r, j] = bias[first_output + j] if bias.size else np.float32(0)
        block_rows(x, first, rows, weight[block], acc)
        for r in range(rows):
            for j in range(width):
                out[first + r, first_output + j] = acc[r, j]


@numba.njit(nogil=True, cache=True)
def linear(x: Any, weight: Any, bias: Any, out: Any) -> None:
    """out = x @ W^T + bias. x: [n, K]; weight: [blocks, K, 64]; bias: [blocks * 64] or empty; out: [n, outputs]."""
    spread(weight.shape[0], block_product, (x, weight, bias, out))


@numba.njit(nogil=True, cache=True)
def linear_alone(x: Any, weight: Any, bias: Any, out: Any) -> None:
    """`linear` in one thread, bit for bit."""
    for block in range(weight.shape[0]):
        block_product(x, weight, bias, out, block)
