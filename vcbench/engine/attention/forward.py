"""Attention of one forward pass over several requests, each against a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vcbench.engine.kv.cache import Joined, KVCache


class BatchAttention:
    """Writes a layer's keys and values into the caches and attends, in one kernel call where caches can be joined."""

    def __init__(self, parts: Sequence[tuple[KVCache, int]]) -> None:
        """parts: each request's cache and number of rows; rows lie one request after the other."""
        self._parts = parts
        self._joined: Joined | None = parts[0][0].join(parts)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q: [n, H, D] after k, v: [n, Hk, D] were written; returns [n, H, D]."""
        if self._joined is not None:
            self._joined.write(layer, k, v)
            return self._joined.attend(layer, q)
        mixed, start = [], 0
        for cache, rows in self._parts:
            part = slice(start, start + rows)
            cache.write(layer, k[part], v[part])
            mixed.append(cache.attend(layer, q[part]))
            start = part.stop
        return torch.cat(mixed) if len(mixed) > 1 else mixed[0]
