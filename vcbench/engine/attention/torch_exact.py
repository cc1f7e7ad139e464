"""Exact attention in torch operations of fixed shapes, for any device and precision.

Keys are taken in chunks of one fixed size counted from entry 0 and queries in tiles of one fixed size, so that every
product has the same shape whatever the call; chunks are combined in ascending order in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vcbench.engine.kv.shape import KVShape
from vcbench.engine.kv.store import TensorView
from vcbench.engine.kv.tensors import TensorStore

CHUNK, ROW_TILE = TensorStore.CHUNK, 64
Chunk = Callable[[int], tuple[Tensor, Tensor]]
Decode = Callable[[int, int], tuple[Tensor, Tensor]]
"""k, v: [Hk, stop - start, D] of positions start .. stop - 1."""


def attend_view(view: TensorView, shape: KVShape, q: Tensor, first_visible: int) -> Tensor:
    """Attention of q: [n, H, D] over one layer's entries, token i over entries 0 .. first_visible + i - 1."""

    def chunk(index: int) -> tuple[Tensor, Tensor]:
        span = slice(index * CHUNK, (index + 1) * CHUNK)
        return view.k[:, span], view.v[:, span]

    return attend_chunks(q, shape, first_visible, chunk)


def attend_decoded(
    shape: KVShape, q: Tensor, tokens: int, decode: Callable[[int, int], tuple[Tensor, Tensor]]
) -> Tensor:
    """Attention of q: [n, H, D], the tokens from position `tokens` on, over entries decoded as they are met."""
    last = tokens + q.shape[0]

    def chunk(index: int) -> tuple[Tensor, Tensor]:
        start = index * CHUNK
        k, v = decode(start, min(start + CHUNK, last))
        missing = (0, 0, 0, CHUNK - k.shape[1])
        return torch.nn.functional.pad(k, missing), torch.nn.functional.pad(v, missing)

    return attend_chunks(q, shape, tokens + 1, chunk)


def attend_chunks(q: Tensor, shape: KVShape, first_visible: int, chunk: Chunk) -> Tensor:
    """Attention over pieces of `CHUNK` entries, each given by `chunk(i)` as k, v: [Hk, CHUNK, D].

    q: [n, H, D]; token i sees entries 0 .. first_visible + i - 1, and the others cannot reach it.
    Every product is [Hk, ROW_TILE, D] x [Hk, D, CHUNK]. Returns [n, H, D] in q's dtype; scores and sums are float32.
    """
    n, heads, depth = q.shape
    chunks = -(-(first_visible + n - 1) // CHUNK)
    group = heads // shape.n_kv_heads
    rows = q.view(n, shape.n_kv_heads, group, depth).permute(1, 0, 2, 3).reshape(shape.n_kv_heads, n * group, depth)
    visible = first_visible + torch.arange(n, device=q.device).repeat_interleave(group)
    outputs = []
    for start in range(0, n * group, ROW_TILE):
        part = rows[:, start : start + ROW_TILE]
        limit = visible[start : start + ROW_TILE]
        missing = ROW_TILE - part.shape[1]
        if missing:
            part = torch.nn.functional.pad(part, (0, 0, 0, missing))
            limit = torch.nn.functional.pad(limit, (0, missing), value=1)
        outputs.append(_attend_tile(part, limit, chunks, chunk)[:, : ROW_TILE - missing])
    out = torch.cat(outputs, dim=1).view(shape.n_kv_heads, n, group, depth)
    return out.permute(1, 0, 2, 3).reshape(n, heads, depth).to(q.dtype)


def _attend_tile(rows: Tensor, limit: Tensor, chunks: int, chunk: Chunk) -> Tensor:
    """Online softmax of one row tile: rows [Hk, R, D], limit [R]; returns [Hk, R, D] float32.

    A weight of 0 does not keep a NaN away, so values that are not finite leave the product and mark the rows that see
    them.
    """
    scale = rows.shape[-1] ** -0.5
    highest = torch.full((*rows.shape[:2], 1), -3.0e38, device=rows.device)
    total = torch.zeros_like(highest)
    acc = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
    for index in range(chunks):
        k, v = chunk(index)
        scores = torch.bmm(rows, k.transpose(1, 2)).float() * scale
        hidden = torch.arange(index * CHUNK, (index + 1) * CHUNK, device=rows.device) >= limit[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        peak = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - peak)
        shrink = torch.exp(highest - peak)
        total = total * shrink + weights.sum(-1, keepdim=True)
        faulty = ~v.isfinite().all(-1)
        acc = acc * shrink + torch.bmm(weights.to(v.dtype), v.masked_fill(faulty[..., None], 0)).float()
        acc = acc.masked_fill((faulty[:, None] & ~hidden).any(-1, keepdim=True), float("nan"))
        highest = peak
    return acc / total
