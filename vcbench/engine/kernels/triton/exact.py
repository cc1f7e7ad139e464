"""Attention over exact entries on a GPU: those that a method has kept, and the tokens since.

KV heads may hold differently many: each span says where its own entries are. See `parts` for spans.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vcbench.engine.kernels.triton.parts import (
    HEAD_STRIDE,
    KEYS,
    ROWS,
    VALUES,
    VISIBLE,
    Launch,
    address,
    aligned,
    count,
    keep_part,
    padded,
    query_rows,
    rows_of,
    split_of,
    weigh,
)

TILE = 64
"""Entries met at a time."""


def attend_exact(launch: Launch, q: Tensor) -> Tensor:
    """Attention of q: [n, H, D] over the exact entries of each span; VISIBLE counts entries. Returns [n, H, D]."""
    q = rows_of(q)
    depth = q.shape[2]
    parts = launch.parts(depth)
    _attend[launch.grid()](
        q, *parts, launch.spans, launch.fields, q.stride(0), q.stride(1), launch.tiles, launch.splits, depth**-0.5,
        DEPTH=depth, WIDE=padded(depth), GROUP=launch.group, ROWS=ROWS, TILE=TILE, num_warps=4, num_stages=2,
    )  # fmt: skip
    return launch.joined(parts, q)


@triton.jit(do_not_specialize=["tiles", "splits"])
def _attend(  # type: ignore[no-untyped-def]
    q, parts, peaks, totals, spans, fields, row_stride, head_stride, tiles, splits, scale,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    span = spans + tl.program_id(0) * fields
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    inside, channel, ahead = tl.arange(0, ROWS), tl.arange(0, WIDE), tl.arange(0, TILE)
    row, deep = tile * ROWS + inside, channel < DEPTH
    operand = q.dtype.element_ty
    query = query_rows(q, span, head, row, channel, deep, row_stride, head_stride, GROUP, 1)
    limit = count(span, VISIBLE) + row // GROUP
    first, stop, end = split_of(span, head, tile, GROUP, 1, ROWS)
    shift = head * tl.load(span + HEAD_STRIDE)
    keys = aligned(address(span, KEYS, operand) + shift)
    values = aligned(address(span, VALUES, operand) + shift)
    highest = tl.full((ROWS,), -3.0e38, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(first, stop, TILE):
        position = start + ahead
        held = (position < end)[:, None] & deep[None, :]
        at = position[:, None] * DEPTH + channel[None, :]
        key = tl.load(keys + at, mask=held, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        highest, weights, shrink = weigh(scores, position[None, :] < limit[:, None], highest)
        value = tl.load(values + at, mask=held, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(operand), value, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
    keep_part(mixed, highest, total, parts, peaks, totals, inside, channel, deep, splits, DEPTH, ROWS)
