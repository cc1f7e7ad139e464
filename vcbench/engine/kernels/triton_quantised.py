"""Attention over packed codes on a GPU: the same layout and meaning as `quantised.py`, as one Triton kernel.

A program takes one KV head, a tile of the query rows of its group, and `SPLIT` blocks of 64 tokens. It decodes each
block's keys and values in registers, takes exact entries where there are no codes, and leaves its part of the softmax
to be joined with the others in ascending order. No row's result depends on the other requests of a batch.

Checked against the CPU kernels in Triton's interpreter (TRITON_INTERPRET=1), which needs no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vcbench.engine.kernels.attention import BLOCK

SPLIT = 16
"""Blocks of 64 tokens that one program takes."""

ROWS = 16
"""Query rows of one tile, the least that tensor cores take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The codes of a layer's keys or values and how to read them; the tensors as `QuantisedCache` holds them.

    codes: [Hk, blocks, D, bytes] of keys, [Hk, blocks, 64, bytes] of values; steps, minima: float16, [Hk, rows,
    columns]; levels: float32, empty for uniform grids; `done`: tokens that are codes.
    """

    codes: Tensor
    steps: Tensor
    minima: Tensor
    levels: Tensor
    bits: int
    group: int
    symmetric: bool
    done: int


def attend_codes(
    q: Tensor, keys: Side, values: Side, by_channel: bool, tail: tuple[Tensor, Tensor], tail_start: int, visible: int
) -> Tensor:
    """Attention of q: [n, H, D], token i over positions 0 .. visible + i - 1; returns [n, H, D] in q's dtype.

    by_channel: key groups are `keys.group` tokens of one channel, else one token. tail: exact keys and values,
    [Hk, n, D] from position `tail_start` on, in q's dtype.
    """
    n, heads, depth = q.shape
    kv_heads = keys.codes.shape[0]
    group = heads // kv_heads
    rows = n * group
    q_rows = q.view(n, kv_heads, group, depth).transpose(0, 1).reshape(kv_heads, rows, depth).contiguous()
    blocks = triton.cdiv(visible + n - 1, BLOCK)
    splits = triton.cdiv(blocks, SPLIT)
    parts = torch.empty((kv_heads, splits, rows, depth), dtype=torch.float32, device=q.device)
    peaks = torch.empty((kv_heads, splits, rows), dtype=torch.float32, device=q.device)
    totals = torch.empty_like(peaks)
    exact_keys, exact_values = tail
    _attend[(kv_heads, splits, triton.cdiv(rows, ROWS))](
        q_rows, exact_keys, exact_values, parts, peaks, totals,
        keys.codes, keys.steps, keys.minima, keys.levels, values.codes, values.steps, values.minima, values.levels,
        keys.codes.shape[1], keys.steps.shape[1], keys.steps.shape[2],
        values.codes.shape[1], values.steps.shape[1], values.steps.shape[2],
        exact_keys.stride(0), exact_values.stride(0), rows, group, visible, tail_start, keys.done, values.done, splits,
        depth ** -0.5,
        DEPTH=depth, WIDE=triton.next_power_of_2(depth), BLOCK=BLOCK, SPLIT=SPLIT, ROWS=ROWS,
        BY_CHANNEL=by_channel, KEY_BITS=keys.bits, VALUE_BITS=values.bits, KEY_GROUP=keys.group,
        VALUE_GROUP=values.group, KEY_BYTES=keys.codes.shape[3], VALUE_BYTES=values.codes.shape[3],
        KEY_RULE=_rule(keys), VALUE_RULE=_rule(values),
    )  # fmt: skip
    return _joined(parts, peaks, totals).view(kv_heads, n, group, depth).transpose(0, 1).reshape(q.shape).to(q.dtype)


LEVELS, SCALED_LEVELS, SYMMETRIC, AFFINE = range(4)
"""What a code stands for: levels[code], levels[code] * step, (code - half) * step, or code * step + minimum."""


def _rule(side: Side) -> int:
    if side.levels.numel():
        return SCALED_LEVELS if side.steps.shape[2] else LEVELS
    return SYMMETRIC if side.symmetric else AFFINE


def _joined(parts: Tensor, peaks: Tensor, totals: Tensor) -> Tensor:
    """The splits' parts of a softmax joined in ascending order: [Hk, rows, D]."""
    highest = peaks.amax(1)
    out = torch.zeros_like(parts[:, 0])
    total = torch.zeros_like(highest)
    for split in range(parts.shape[1]):
        weight = torch.exp(peaks[:, split] - highest)
        out += parts[:, split] * weight[..., None]
        total += totals[:, split] * weight
    return out / total[..., None]


@triton.jit
def _code(base, index, mask, BITS: tl.constexpr, BYTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Code `index` of the packed line at `base`; see `quantised.py` for the layout."""
    if BITS == 3:
        low_bytes: tl.constexpr = BYTES // 3 * 2
        high_bytes: tl.constexpr = BYTES - low_bytes
        low = tl.load(base + index % low_bytes, mask=mask, other=0).to(tl.int32) >> (2 * (index // low_bytes))
        high = tl.load(base + low_bytes + index % high_bytes, mask=mask, other=0).to(tl.int32) >> (index // high_bytes)
        code = (low & 3) | ((high & 1) << 2)
    else:
        word = tl.load(base + index % BYTES, mask=mask, other=0).to(tl.int32)
        code = (word >> (BITS * (index // BYTES))) & ((1 << BITS) - 1)
    return code


@triton.jit
def _meaning(code, steps, minima, levels, at, mask, BITS: tl.constexpr, RULE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a code stands for under one of the rules above; `at`: the place of its group's step."""
    if RULE == 0:
        value = tl.load(levels + code, mask=mask, other=0.0)
    else:
        step = tl.load(steps + at, mask=mask, other=0.0).to(tl.float32)
        if RULE == 1:
            value = tl.load(levels + code, mask=mask, other=0.0) * step
        elif RULE == 2:
            value = (code - (1 << (BITS - 1))).to(tl.float32) * step
        else:
            value = code.to(tl.float32) * step + tl.load(minima + at, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q, exact_keys, exact_values, parts, peaks, totals,
    k_codes, k_steps, k_minima, k_levels, v_codes, v_steps, v_minima, v_levels,
    k_blocks, k_rows, k_columns, v_blocks, v_rows, v_columns,
    exact_key_stride, exact_value_stride, rows, group, visible, tail_start, keys_done, values_done, splits,
    scale,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
    BY_CHANNEL: tl.constexpr, KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, KEY_GROUP: tl.constexpr,
    VALUE_GROUP: tl.constexpr, KEY_BYTES: tl.constexpr, VALUE_BYTES: tl.constexpr,
    KEY_RULE: tl.constexpr, VALUE_RULE: tl.constexpr,
):  # fmt: skip
    """One KV head, one split, one tile of rows; see `attend_codes`."""
    head, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tile * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, WIDE)
    inside = tl.arange(0, BLOCK)
    deep = channel < DEPTH
    here = (row < rows)[:, None] & deep[None, :]
    rows_q = tl.load(q + (head * rows + row[:, None]) * DEPTH + channel[None, :], mask=here, other=0.0)
    operand = q.dtype.element_ty
    limit = visible + row // group
    last = visible + (rows - 1) // group
    highest = tl.full((ROWS,), -3.0e38, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    for block in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, tl.cdiv(last, BLOCK))):
        position = block * BLOCK + inside
        entry = (position - tail_start)[:, None] * DEPTH + channel[None, :]

        coded = (position < keys_done)[:, None] & deep[None, :]
        line = k_codes + ((head * k_blocks + block) * DEPTH + channel[None, :]) * KEY_BYTES
        code = _code(line, inside[:, None], coded, KEY_BITS, KEY_BYTES)
        if BY_CHANNEL:
            at = (head * k_rows + (position // KEY_GROUP)[:, None]) * k_columns + channel[None, :]
        else:
            at = (head * k_rows + block) * k_columns + inside[:, None] + 0 * channel[None, :]
        key = _meaning(code, k_steps, k_minima, k_levels, at, coded, KEY_BITS, KEY_RULE)
        stored = ((position >= keys_done) & (position < last))[:, None] & deep[None, :]
        key += tl.load(exact_keys + head * exact_key_stride + entry, mask=stored, other=0.0).to(tl.float32)

        key = tl.where(coded | stored, key, 0.0).to(operand)
        scores = tl.dot(rows_q, tl.trans(key), input_precision="ieee") * scale
        seen = position[None, :] < limit[:, None]
        scores = tl.where(seen, scores, -float("inf"))
        peak = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - peak[:, None])
        shrink = tl.exp(highest - peak)

        coded = (position < values_done)[:, None] & deep[None, :]
        line = v_codes + ((head * v_blocks + block) * BLOCK + inside[:, None]) * VALUE_BYTES
        code = _code(line, channel[None, :], coded, VALUE_BITS, VALUE_BYTES)
        at = (head * v_rows + position[:, None]) * v_columns + (channel // VALUE_GROUP)[None, :]
        value = _meaning(code, v_steps, v_minima, v_levels, at, coded, VALUE_BITS, VALUE_RULE)
        stored = ((position >= values_done) & (position < last))[:, None] & deep[None, :]
        value += tl.load(exact_values + head * exact_value_stride + entry, mask=stored, other=0.0).to(tl.float32)

        value = tl.where(coded | stored, value, 0.0).to(operand)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(operand), value, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        highest = peak
    place = (head * splits + split) * rows + row
    tl.store(parts + place[:, None] * DEPTH + channel[None, :], mixed, mask=here)
    tl.store(peaks + place, highest, mask=row < rows)
    tl.store(totals + place, total, mask=row < rows)
