"""Writing, reading and copying entries of paged key and value blocks.

Offsets are bytes inside a page, as in `attention.attend_pages`; an entry's key lies strided by 64 floats.
"""

from __future__ import annotations

from typing import Any

import numba

from vcbench.engine.kernels.cpu.exact.attention import BLOCK, HEAD, HEADS, KEYS, ROW, TABLE, TOKENS, VALUES, VISIBLE
from vcbench.engine.kernels.cpu.simd import load, store


@numba.njit(nogil=True, inline="always")
def entry_address(table: Any, entry: int, offset: int, step: int) -> int:
    """Address of an entry's first float; `step` is 4 for keys and 4 * width for values."""
    return table[entry // BLOCK] + offset + (entry % BLOCK) * step


@numba.njit(nogil=True, cache=True)
def write_entries(
    table: Any, keys_at: int, values_at: int, head_bytes: int, width: int, start: int, k: Any, v: Any
) -> None:
    """Stores k, v: [n, Hk, D] as entries start .. start + n - 1."""
    for i in range(k.shape[0]):
        for h in range(k.shape[1]):
            key = entry_address(table, start + i, keys_at + h * head_bytes, 4)
            value = entry_address(table, start + i, values_at + h * head_bytes, 4 * width)
            for d in range(k.shape[2]):
                store(key + 4 * d * BLOCK, k[i, h, d])
                store(value + 4 * d, v[i, h, d])


@numba.njit(nogil=True, cache=True)
def write_rows(k: Any, v: Any, spans: Any, tables: Any, shift: int, head_bytes: int, width: int) -> None:
    """Stores k, v: [n, Hk, D], each row of a span as the last entry that it sees; see `attention.attend_pages`."""
    for s in range(spans.shape[0]):
        table, heads = tables[spans[s, TABLE] :], spans[s, HEAD]
        rows = slice(spans[s, ROW], spans[s, ROW] + spans[s, TOKENS])
        part = slice(heads, heads + spans[s, HEADS])
        write_entries(
            table, shift + spans[s, KEYS], shift + spans[s, VALUES], head_bytes, width, spans[s, VISIBLE] - 1,
            k[rows, part], v[rows, part],
        )  # fmt: skip


@numba.njit(nogil=True, cache=True)
def read_entries(
    table: Any, keys_at: int, values_at: int, head_bytes: int, width: int, entries: Any, k: Any, v: Any
) -> None:
    """k[h, i], v[h, i] = entry entries[h, i] of head h. entries: [Hk, n] int64; k, v: [Hk, n, D]."""
    for h in range(k.shape[0]):
        for i in range(k.shape[1]):
            key = entry_address(table, entries[h, i], keys_at + h * head_bytes, 4)
            value = entry_address(table, entries[h, i], values_at + h * head_bytes, 4 * width)
            for d in range(k.shape[2]):
                k[h, i, d] = load(key + 4 * d * BLOCK)
                v[h, i, d] = load(value + 4 * d)
