"""Attention in float64, written as the formula reads: what every cache and kernel is held against."""

from __future__ import annotations

import torch
from torch import Tensor

from vcbench.engine.kv.stores import KVShape


def shape_of(
    *, layers: int = 2, heads: int = 4, kv_heads: int = 2, head_dim: int = 32, dtype: torch.dtype = torch.float32
) -> KVShape:
    """A shape on CPU."""
    return KVShape(
        n_layers=layers, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=torch.device("cpu")
    )


def attention(q: Tensor, k: Tensor, v: Tensor, first_visible: int) -> Tensor:
    """q: [n, H, D]; k, v: [Hk, T, D]; query i sees entries 0 .. first_visible + i - 1. Returns [n, H, D], float64."""
    rows, heads, size = q.shape
    group = heads // k.shape[0]
    keys, values = (x.double().repeat_interleave(group, 0) for x in (k, v))
    scores = torch.einsum("nhd,htd->hnt", q.double(), keys) / size**0.5
    visible = first_visible + torch.arange(rows)[:, None]
    scores = scores.masked_fill(torch.arange(k.shape[1])[None, :] >= visible, float("-inf"))
    return torch.einsum("hnt,htd->nhd", torch.softmax(scores, -1), values)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
