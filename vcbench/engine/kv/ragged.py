"""A draft cache whose layers, or heads, keep differently many prompt entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vcbench.engine.kernels.cpu.exact.attention import HEAD, TABLE, TOKENS, VISIBLE
from vcbench.engine.kv.cache import FullCache, PagedCache
from vcbench.engine.kv.stores import ExactStore, KVShape, PagedStore, PageRows, Spans, make_store

PADDING = -1


class Part:
    """Consecutive KV heads of one layer that keep equally many entries, and the store that holds them."""

    def __init__(self, shape: KVShape, first_head: int, positions: Tensor) -> None:
        """positions: [heads, kept], the true position of each kept prompt entry, ascending."""
        heads, group = positions.shape[0], shape.n_heads // shape.n_kv_heads
        self.kv_heads = slice(first_head, first_head + heads)
        self.heads = slice(first_head * group, (first_head + heads) * group)
        self.positions = positions.to(torch.int32)
        self.store: ExactStore = make_store(replace(shape, n_layers=1, n_kv_heads=heads, n_heads=heads * group))

    @property
    def kept(self) -> int:
        """Prompt entries a head."""
        return int(self.positions.shape[1])

    def write(self, entry: int, k: Tensor, v: Tensor) -> None:
        """Stores k, v: [n, Hk, D] of all the layer's heads from `entry` on."""
        self.store.write(0, entry, k[:, self.kv_heads], v[:, self.kv_heads])


class RaggedCache(PagedCache):
    """Chosen prompt entries, then the tokens generated since; keys keep the rotation of their original position."""

    constants: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, shape: KVShape, prompt: int, layers: Sequence[Sequence[Tensor]]) -> None:
        """layers: for each layer its parts in order of heads, each the positions [heads, kept]."""
        super().__init__(shape, prompt)
        self.prompt = prompt
        self.layers: list[list[Part]] = []
        for parts in layers:
            first, made = 0, []
            for positions in parts:
                made.append(Part(shape, first, positions))
                first += positions.shape[0]
            self.layers.append(made)
        self._rows: PageRows | None = None

    @classmethod
    def gather(cls, full: FullCache, layers: Sequence[Sequence[Tensor]]) -> RaggedCache:
        """The entries of a full cache at these positions; int64."""
        cache = cls(full.shape, full.tokens, layers)
        for layer, parts in enumerate(cache.layers):
            for part, positions in zip(parts, layers[layer], strict=True):
                every = positions.new_zeros((full.shape.n_kv_heads, part.kept))
                every[part.kv_heads] = positions
                k, v = full.store.read(layer, every)
                part.write(0, k.transpose(0, 1), v.transpose(0, 1))
        return cache

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        for part in self.layers[layer]:
            part.write(part.kept + self.tokens - self.prompt, k, v)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        since = self.tokens - self.prompt
        mixed = [part.store.attend(0, q[:, part.heads], part.kept + since + 1) for part in self.layers[layer]]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)

    def page_rows(self, count: int) -> PageRows | None:
        since, pages = self.tokens - self.prompt, 0
        for part in (part for layer in self.layers for part in layer):
            if not isinstance(part.store, PagedStore):
                return None
            part.store.reserve(part.kept + since + count)
            pages += len(part.store.table())
        if self._rows is None or len(self._rows.tables) != pages:
            self._rows = self._first_rows()
        rows = replace(self._rows, spans=self._rows.spans.copy(), count=count)
        rows.spans[:, TOKENS] = count
        rows.spans[:, VISIBLE] += since
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows, whose addresses are those of this cache's pages."""
        return {**self.__dict__, "_rows": None}

    def _first_rows(self) -> PageRows:
        """The row that follows the prompt over every part, with all pages that there are."""
        spans: list[Spans] = []
        tables: list[Spans] = []
        layers = []
        for index, layer in enumerate(self.layers):
            for part in layer:
                assert isinstance(part.store, PagedStore)
                span = part.store.rows(part.kept, 1).spans
                span[0, HEAD] = part.kv_heads.start
                span[0, TABLE] = sum(map(len, tables))
                spans.append(span)
                tables.append(part.store.table())
                layers.append(index)
        return PageRows(np.concatenate(spans), np.concatenate(tables), 1, np.array(layers))

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        self.roll_back()
        if verified is not None:
            for layer in range(self.shape.n_layers):
                k, v = verified.store.read_range(layer, self.committed, self.committed + count)
                self.write(layer, k.transpose(0, 1), v.transpose(0, 1))
        super().commit(count)

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """As in `KVCache`; shorter heads are filled up with entries at position -1, which attention does not see."""
        since = self.tokens - self.prompt
        longest = max(part.kept for part in self.layers[layer]) + since
        joined = []
        for part in self.layers[layer]:
            n = part.kept + since
            k, v = part.store.read_range(0, 0, n)
            later = torch.arange(self.prompt, self.tokens, device=k.device).expand(k.shape[0], -1)
            positions = torch.cat([part.positions.long(), later], dim=1)
            fill = (0, 0, 0, longest - n)
            padded = torch.nn.functional.pad(positions, fill[2:], value=PADDING)
            joined.append((torch.nn.functional.pad(k, fill), torch.nn.functional.pad(v, fill), padded))
        k, v, positions = (torch.cat(pieces) for pieces in zip(*joined, strict=True))
        return k, v, positions

    def nbytes(self) -> dict[str, int]:
        parts = [part for layer in self.layers for part in layer]
        entry = 2 * self.shape.head_dim * self.shape.dtype.itemsize
        total = sum(part.store.nbytes() for part in parts)
        kept = min(total, sum(part.positions.numel() for part in parts) * entry)
        return {"kept": kept, "tail": total - kept, "positions": sum(part.positions.nbytes for part in parts)}
