"""Attention of one forward pass over several requests, each against a cache of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from vcbench.engine.attention.joined import Joined, Parts
from vcbench.engine.attention.readers import attend, join


class BatchAttention:
    """Writes a layer's keys and values into the caches and attends, in one kernel call where caches can be joined."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._joined: Joined | None = join(parts)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q: [n, H, D] after k, v: [n, Hk, D] were written; returns [n, H, D]."""
        if self._joined is not None:
            self._joined.write(layer, k, v)
            return self._joined.attend(layer, q)
        mixed, start = [], 0
        for cache, rows in self._parts:
            part = slice(start, start + rows)
            cache.write(layer, k[part], v[part])
            mixed.append(attend(cache, layer, q[part]))
            start = part.stop
        return torch.cat(mixed) if len(mixed) > 1 else mixed[0]
