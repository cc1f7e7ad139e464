"""Per-row operations of the decoder on float32 rows: norms, rotation, activation, arg-max."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.cpu.simd import Float, exp, fma
from vcbench.engine.kernels.cpu.workers import spread

_LANES = 16


@numba.njit(nogil=True)
def mean_square(x: Any, start: int, size: int) -> Any:
    """Mean of squares of x[start : start + size], summed over 16 lanes, then over the lanes in order."""
    lanes = np.zeros(_LANES, np.float32)
    whole = size - size % _LANES
    for block in range(0, whole, _LANES):
        for j in range(_LANES):
            lanes[j] = fma(x[start + block + j], x[start + block + j], lanes[j])
    total = Float(0)
    for j in range(_LANES):
        total += lanes[j]
    for j in range(whole, size):
        total = fma(x[start + j], x[start + j], total)
    return total / Float(size)


@numba.njit(nogil=True, cache=True)
def rms_norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    """out = x / sqrt(mean(x**2) + eps) * weight, row by row. x, out: [n, size]."""
    for i in range(x.shape[0]):
        scale = Float(1) / np.sqrt(mean_square(x[i], 0, x.shape[1]) + Float(eps))
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * scale * weight[j]


@numba.njit(nogil=True, cache=True)
def norm_heads(x: Any, first: int, heads: int, size: int, weight: Any, eps: float) -> None:
    """RMS norm in place of each head of size `size`, the first one starting at column `first`. x: [n, columns]."""
    for i in range(x.shape[0]):
        for h in range(heads):
            start = first + h * size
            scale = Float(1) / np.sqrt(mean_square(x[i], start, size) + Float(eps))
            for d in range(size):
                x[i, start + d] = x[i, start + d] * scale * weight[d]


@numba.njit(nogil=True, cache=True)
def rotate_heads(x: Any, first: int, heads: int, size: int, positions: Any, cos: Any, sin: Any) -> None:
    """Rotates each head in place: pairs (d, d + size / 2), angles of the row's position. cos, sin: [P, size / 2]."""
    half = size // 2
    for i in range(x.shape[0]):
        p = positions[i]
        for h in range(heads):
            start = first + h * size
            for d in range(half):
                a, b = x[i, start + d], x[i, start + half + d]
                x[i, start + d] = fma(a, cos[p, d], -(b * sin[p, d]))
                x[i, start + half + d] = fma(b, cos[p, d], a * sin[p, d])


@numba.njit(nogil=True)
def gated_silu_row(gate_up: Any, out: Any, row: int) -> None:
    """One row of `gated_silu`."""
    size = out.shape[1]
    for j in range(size):
        x = gate_up[row, j]
        small = exp(-abs(x))
        sigmoid = Float(1) / (Float(1) + small)
        out[row, j] = x * (sigmoid if x >= Float(0) else small * sigmoid) * gate_up[row, size + j]


@numba.njit(nogil=True, cache=True)
def gated_silu(gate_up: Any, out: Any) -> None:
    """out = silu(gate) * up for gate_up = [gate | up]. gate_up: [n, 2 * size], out: [n, size]."""
    for i in range(out.shape[0]):
        gated_silu_row(gate_up, out, i)


@numba.njit(nogil=True, cache=True)
def gated_silu_of_many(gate_up: Any, out: Any) -> None:
    """`gated_silu` on all threads: worth their start from some dozens of rows on."""
    spread(out.shape[0], gated_silu_row, (gate_up, out))


@numba.njit(nogil=True, cache=True)
def arg_max(logits: Any, out: Any) -> None:
    """out[i] = the first index of row i's maximum, or -1 if the row holds a NaN or an infinity. logits: [n, V]."""
    for i in range(logits.shape[0]):
        best = -1
        highest = Float(-np.inf)
        finite = True
        for j in range(logits.shape[1]):
            x = logits[i, j]
            finite = finite and abs(x) < Float(np.inf)
            if x > highest:
                highest = x
                best = j
        out[i] = best if finite else -1
