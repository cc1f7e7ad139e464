"""Packed codes decoded into a cache-sized tile, block by block, for kernels that turn keys before they meet queries.

Codes of b bits (1, 2, 4 or 8) lie interleaved in bytes: of n codes in W = n * b / 8 bytes, code i is in byte i mod W,
shifted by b * (i // W), so that unpacking runs over vector lanes. 3 bits are two such planes: the lower 2 bits of all
codes, then the upper ones. Steps and minima are float16 bits.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from vcbench.engine.kernels.attention import (
    BLOCK,
    combine_row,
)
from vcbench.engine.kernels.simd import Float, decode_run, decode_run_by_lane, half_as_float, load


@numba.njit(nogil=True)
def affine(steps: Any, minima: Any, row: int, column: int, bits: int, symmetric: bool) -> Any:
    """Step and offset of one group: x = code * step + offset."""
    step = half_as_float(steps[row, column])
    if symmetric:
        return step, -Float(1 << (bits - 1)) * step
    return step, half_as_float(minima[row, column])


@numba.njit(nogil=True)
def add_plane(codes: int, size: int, steps: int, count: int, out: int) -> None:
    """out[i] += bit i * steps[i] for `count` codes of one bit in `size` bytes. steps, out: float32 addresses."""
    for slot in range(8):
        index = slot * size
        if index >= count:
            break
        at = out + 4 * index
        decode_run_by_lane(
            codes, np.int32(slot), np.int32(1), min(size, count - index), steps + 4 * index, at, at
        )  # fmt: skip


@numba.njit(nogil=True)
def decode_plane(
    codes: int,
    pitch: int,
    size: int,
    count: int,
    group: int,
    bits: int,
    steps: Any,
    offsets: Any,
    out: int,
    stride: int,
) -> None:
    """out[line, i] = code * steps[g, line] + offsets[g, line] for i < count, g = i // group.

    A line's codes lie in `size` bytes from codes + line * pitch on. steps, offsets: [groups, lines]. out: float32
    address, `stride` floats a line. Lines are innermost, so that what depends on i alone is worked out once.
    """
    mask = np.int32((1 << bits) - 1)
    run = math.gcd(size, group)
    for slot in range(8 // bits):
        shift = np.int32(slot * bits)
        for start in range(0, size, run):
            index = slot * size + start
            if index >= count:
                return
            g = index // group
            length = min(run, count - index)
            for line in range(steps.shape[1]):
                at = out + 4 * (line * stride + index)
                decode_run(codes + line * pitch + start, shift, mask, length, steps[g, line], offsets[g, line], at)


@numba.njit(nogil=True)
def decode_lines(codes: Any, count: int, group: int, bits: int, steps: Any, offsets: Any, tile: Any) -> None:
    """tile[line, i] for i < count of every line of codes: [lines, bytes]; see `decode_plane`."""
    size = codes.shape[1]
    at, out, stride = codes.ctypes.data, tile.ctypes.data, tile.shape[1]
    if bits != 3:
        decode_plane(at, size, size, count, group, bits, steps, offsets, out, stride)
        return
    low = size // 3 * 2
    decode_plane(at, size, low, count, group, 2, steps, offsets, out, stride)
    upper = np.empty(count, np.float32)
    for line in range(steps.shape[1]):
        for i in range(count):
            upper[i] = Float(4) * steps[i // group, line]
        add_plane(at + line * size + low, size // 3, upper.ctypes.data, count, out + 4 * line * stride)


@numba.njit(nogil=True)
def keys_by_channel(
    codes: Any, steps: Any, minima: Any, block: int, count: int, group: int, bits: int, symmetric: bool, tile: Any
) -> None:
    """tile[d, j] for the first `count` tokens of a block; groups of `group` tokens within a channel.

    codes: [blocks, D, bytes]; steps, minima: [groups, D]; a group longer than a block covers several.
    """
    channels = codes.shape[1]
    inside = min(group, BLOCK)
    groups = (count + inside - 1) // inside
    wide = np.empty((2, groups, channels), np.float32)
    for g in range(groups):
        for d in range(channels):
            wide[0, g, d], wide[1, g, d] = affine(
                steps, minima, (block * BLOCK + g * inside) // group, d, bits, symmetric
            )
    decode_lines(codes[block], count, inside, bits, wide[0], wide[1], tile)


@numba.njit(nogil=True)
def keys_by_token(
    codes: Any, steps: Any, minima: Any, block: int, count: int, bits: int, symmetric: bool, tile: Any
) -> None:
    """tile[d, j] for the first `count` tokens of a block; one group a token. steps, minima: [blocks, 64]."""
    size, plane = (codes.shape[2] // 3 * 2, 2) if bits == 3 else (codes.shape[2], bits)
    mask = np.int32((1 << plane) - 1)
    wide = np.empty((3, BLOCK), np.float32)
    for j in range(count):
        wide[0, j], wide[1, j] = affine(steps, minima, block, j, bits, symmetric)
        wide[2, j] = Float(4) * wide[0, j]
    steps_at, offsets_at = wide[0].ctypes.data, wide[1].ctypes.data
    at, out, pitch = codes[block].ctypes.data, tile.ctypes.data, codes.shape[2]
    for d in range(codes.shape[1]):
        line = at + d * pitch
        for slot in range(8 // plane):
            index = slot * size
            if index >= count:
                break
            decode_run_by_lane(
                line, np.int32(slot * plane), mask, min(size, count - index), steps_at + 4 * index,
                offsets_at + 4 * index, out + 4 * (d * BLOCK + index),
            )  # fmt: skip
        if bits == 3:
            add_plane(line + size, codes.shape[2] // 3, wide[2].ctypes.data, count, tile[d].ctypes.data)


@numba.njit(nogil=True)
def values_by_token(
    codes: Any, steps: Any, minima: Any, block: int, count: int, group: int, bits: int, symmetric: bool, tile: Any
) -> None:
    """tile[j, d] for the first `count` tokens of a block; groups of `group` channels within a token.

    codes: [blocks, 64, bytes]; steps, minima: [blocks * 64, groups].
    """
    groups = steps.shape[1]
    wide = np.empty((2, groups, count), np.float32)
    for j in range(count):
        for g in range(groups):
            wide[0, g, j], wide[1, g, j] = affine(steps, minima, block * BLOCK + j, g, bits, symmetric)
    decode_lines(codes[block], groups * group, group, bits, wide[0], wide[1], tile)


@numba.njit(nogil=True)
def unpacked(line: Any, bits: int, out: Any) -> None:
    """out[i] = code i of a packed line, int32."""
    low = line.shape[0] // 3 * 2 if bits == 3 else line.shape[0]
    plane = 2 if bits == 3 else bits
    mask = np.int32((1 << plane) - 1)
    for slot in range(8 // plane):
        shift = np.int32(slot * plane)
        for i in range(low):
            out[slot * low + i] = (np.int32(line[i]) >> shift) & mask
    if bits == 3:
        high = line.shape[0] - low
        for slot in range(8):
            shift = np.int32(slot)
            for i in range(high):
                out[slot * high + i] |= ((np.int32(line[low + i]) >> shift) & np.int32(1)) << np.int32(2)


@numba.njit(nogil=True)
def keys_by_level(codes: Any, scales: Any, levels: Any, block: int, count: int, bits: int, tile: Any) -> None:
    """tile[d, j] = levels[code] * scale for the first `count` tokens of a block.

    codes: [blocks, D, bytes]; scales: [blocks, 64], or [blocks, 0] where every scale is 1.
    """
    index = np.empty(BLOCK, np.int32)
    scale = np.ones(BLOCK, np.float32)
    for j in range(min(count, scales.shape[1])):
        scale[j] = half_as_float(scales[block, j])
    for d in range(codes.shape[1]):
        unpacked(codes[block, d], bits, index)
        for j in range(count):
            tile[d, j] = levels[index[j]] * scale[j]


@numba.njit(nogil=True)
def values_by_level(
    codes: Any, scales: Any, levels: Any, block: int, count: int, bits: int, depth: int, tile: Any
) -> None:
    """tile[j, d] = levels[code] * scale for the first `count` tokens of a block and `depth` channels.

    codes: [blocks, 64, bytes]; scales: [blocks * 64, 1], or [blocks * 64, 0] where every scale is 1.
    """
    index = np.empty(tile.shape[1], np.int32)
    for j in range(count):
        unpacked(codes[block, j], bits, index)
        scale = half_as_float(scales[block * BLOCK + j, 0]) if scales.shape[1] else Float(1)
        for d in range(depth):
            tile[j, d] = levels[index[d]] * scale


@numba.njit(nogil=True)
def copy_tile(address: int, tile: Any) -> None:
    """The exact tile at an address."""
    for r in range(tile.shape[0]):
        for c in range(tile.shape[1]):
            tile[r, c] = load(address + 4 * (r * tile.shape[1] + c))


@numba.njit(nogil=True)
def begin_tile(exact: int, quantised: int, tile: Any) -> int:
    """How many of a block's tokens are codes, `quantised` of them from its first on; the others are put into `tile`."""
    ready = min(BLOCK, quantised)
    if 0 < ready < BLOCK:
        copy_tile(exact, tile)
    return ready


@numba.njit(nogil=True)
def decode_keys(
    codes: Any, steps: Any, minima: Any, levels: Any, by_channel: bool, symmetric: bool, bits: int, group: int,
    block: int, count: int, tile: Any,
) -> None:  # fmt: skip
    """The codes of the first `count` tokens of a block into tile[d, j], whatever their scheme."""
    if levels.size:
        keys_by_level(codes, steps, levels, block, count, bits, tile)
    elif by_channel:
        keys_by_channel(codes, steps, minima, block, count, group, bits, symmetric, tile)
    else:
        keys_by_token(codes, steps, minima, block, count, bits, symmetric, tile)


@numba.njit(nogil=True)
def value_block(
    codes: Any, steps: Any, minima: Any, levels: Any, symmetric: bool, bits: int, group: int, depth: int,
    block: int, quantised: int, exact: int, tile: Any,
) -> Any:  # fmt: skip
    """Address of a block's values: the exact page, or `tile` with the codes of tokens below `quantised` decoded."""
    ready = begin_tile(exact, quantised - block * BLOCK, tile)
    if ready <= 0:
        return exact
    if levels.size:
        values_by_level(codes, steps, levels, block, ready, bits, depth, tile)
    else:
        values_by_token(codes, steps, minima, block, ready, group, bits, symmetric, tile)
    return tile.ctypes.data


@numba.njit(nogil=True)
def combine_heads(part_max: Any, part_sum: Any, part_acc: Any, chunks: int, out: Any) -> None:
    """out: [n, Hk, G, D] from parts that lie by head, chunk and row; see `combine_row`."""
    n, kv_heads, group = out.shape[0], out.shape[1], out.shape[2]
    rows = n * group
    for head in range(kv_heads):
        for row in range(rows):
            first = head * chunks * rows + row
            combine_row(part_max, part_sum, part_acc, first, rows, chunks, out[row // group, head, row % group])
