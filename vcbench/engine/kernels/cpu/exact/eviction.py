"""What one token attends to, entry by entry, in every layer at once, and moving entries within paged stores.

Offsets are bytes inside a page, as in `attention.attend_pages`, one for each layer.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.cpu.exact.attention import BLOCK, LOWEST
from vcbench.engine.kernels.cpu.exact.pages import entry_address
from vcbench.engine.kernels.cpu.simd import Float, address, exp, fma_rows, load, store
from vcbench.engine.kernels.cpu.workers import spread

_MINUS_INFINITY = Float(-np.inf)
_LANES = 64


@numba.njit(nogil=True)
def row_maximum(line: Any, width: int) -> Any:
    """Maximum of line[:width], width a multiple of 64."""
    lanes = np.full(_LANES, LOWEST, np.float32)
    for start in range(0, width, _LANES):
        for j in range(_LANES):
            x = line[start + j]
            lanes[j] = x if x > lanes[j] else lanes[j]
    highest = LOWEST
    for j in range(_LANES):
        highest = lanes[j] if lanes[j] > highest else highest
    return highest


@numba.njit(nogil=True)
def exponentials(line: Any, width: int) -> Any:
    """Turns line[:width] into exp(line - maximum), width a multiple of 64; returns their sum."""
    highest = row_maximum(line, width)
    lanes = np.zeros(_LANES, np.float32)
    for start in range(0, width, _LANES):
        for j in range(_LANES):
            weight = exp(line[start + j] - highest)
            line[start + j] = weight
            lanes[j] += weight
    total = Float(0)
    for j in range(_LANES):
        total += lanes[j]
    return total


@numba.njit(nogil=True)
def head_shares(q: Any, table: Any, keys_at: Any, head_bytes: int, entries: int, out: Any, task: int) -> None:
    """`attention_shares` of one layer and KV head."""
    _, heads, depth = q.shape
    kv_heads = out.shape[1]
    group = heads // kv_heads
    blocks = (entries + BLOCK - 1) // BLOCK
    scale = Float(1.0 / np.sqrt(depth))
    layer, head = task // kv_heads, task % kv_heads
    query = q[layer, head * group : (head + 1) * group] * scale
    scores = np.zeros((group, blocks * BLOCK), np.float32)
    for block in range(blocks):
        fma_rows(
            group, address(query), depth, table[block] + keys_at[layer] + head * head_bytes,
            address(scores) + 4 * block * BLOCK, blocks * BLOCK, depth, BLOCK,
        )  # fmt: skip
    shares = out[layer, head]
    shares[:] = Float(0)
    for g in range(group):
        line = scores[g]
        line[entries:] = _MINUS_INFINITY
        share = Float(1) / exponentials(line, blocks * BLOCK)
        for j in range(entries):
            shares[j] += line[j] * share


@numba.njit(nogil=True, cache=True)
def attention_shares(q: Any, table: Any, keys_at: Any, head_bytes: int, entries: int, out: Any) -> None:
    """out[l, h, j] = softmax share of entry j, summed over the query heads of KV head h.

    q: [L, H, D]; keys_at: [L]; the first `entries` entries take part. out: [L, Hk, entries].
    """
    spread(q.shape[0] * out.shape[1], head_shares, (q, table, keys_at, head_bytes, entries, out))


@numba.njit(nogil=True, cache=True)
def copy_entry(
    table: Any, keys_at: Any, values_at: Any, head_bytes: int, width: int, depth: int, source: int, targets: Any
) -> None:
    """Copies entry `source` of every layer and head over entry targets[l, h]. targets: [L, Hk] int64."""
    for layer in range(targets.shape[0]):
        for head in range(targets.shape[1]):
            target = targets[layer, head]
            for at, step, stride in ((keys_at[layer], 4, 4 * BLOCK), (values_at[layer], 4 * width, 4)):
                taken = entry_address(table, source, at + head * head_bytes, step)
                put = entry_address(table, target, at + head * head_bytes, step)
                for d in range(depth):
                    store(put + d * stride, load(taken + d * stride))
