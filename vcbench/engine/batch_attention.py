"""Attention of one forward pass over several requests, each against a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vcbench.engine.cache import EntryCache, KVCache
from vcbench.engine.stores import PageBatch, PagedStore


class BatchAttention:
    """Writes a layer's keys and values into the caches and attends, in one kernel call where all caches are paged."""

    def __init__(self, parts: Sequence[tuple[KVCache, int]]) -> None:
        """parts: each request's cache and number of rows; rows lie one request after the other."""
        self._parts = parts
        self._pages = self._paged()

    def _paged(self) -> PageBatch | None:
        pages: list[tuple[PagedStore, int, int]] = []
        for cache, rows in self._parts:
            if not isinstance(cache, EntryCache) or not isinstance(cache.store, PagedStore):
                return None
            cache.store.reserve(cache.entries() + rows)
            pages.append((cache.store, cache.entries(), rows))
        return PageBatch(pages)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q: [n, H, D] after k, v: [n, Hk, D] were written; returns [n, H, D]."""
        mixed, start = [], 0
        for cache, rows in self._parts:
            part = slice(start, start + rows)
            cache.write(layer, k[part], v[part])
            if self._pages is None:
                mixed.append(cache.attend(layer, q[part]))
            start = part.stop
        if self._pages is not None:
            return self._pages.attend(layer, q)
        return torch.cat(mixed) if len(mixed) > 1 else mixed[0]
