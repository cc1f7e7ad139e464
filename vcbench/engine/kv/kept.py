"""Draft caches that hold fewer tokens than there are: some prompt entries and everything since, each exact."""

from __future__ import annotations

from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from vcbench.engine.kv.cache import EntryCache, FullCache
from vcbench.engine.kv.stores import ExactStore, KVShape


class KeptCache(EntryCache):
    """Chosen prompt entries, moved together, followed by the tokens generated since.

    Heads of a layer keep different positions but equally many. Entries 0 .. kept - 1 are the chosen ones, in ascending
    position; the token at position p >= `prompt` is entry kept + p - prompt. Keys keep the rotation of their original
    position.
    """

    def __init__(self, shape: KVShape, prompt: int, positions: Tensor) -> None:
        """positions: [L, Hk, kept], the true position of each kept prompt entry."""
        super().__init__(shape, prompt)
        self.prompt = prompt
        self.positions = positions.to(torch.int32)

    @property
    def kept(self) -> int:
        """Prompt entries held per layer and head."""
        return int(self.positions.shape[2])

    @classmethod
    def gather(cls, full: FullCache, positions: Tensor) -> Self:
        """The entries of a full cache at positions: [L, Hk, kept]."""
        cache = cls(full.shape, full.tokens, positions)
        for layer in range(full.shape.n_layers):
            k, v = full.store.read(layer, positions[layer].long())
            cache.store.write(layer, 0, k.transpose(0, 1), v.transpose(0, 1))
        return cache

    def entries(self) -> int:
        return self.kept + self.tokens - self.prompt

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        self.roll_back()
        if verified is not None:
            self.store.copy_from(verified.store, self.committed, self.entries(), count)
        super().commit(count)

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.store.read_range(layer, 0, self.entries())
        since = torch.arange(self.prompt, self.tokens, dtype=torch.int32, device=self.positions.device)
        positions = torch.cat([self.positions[layer], since.expand(self.shape.n_kv_heads, -1)], dim=1)
        return k, v, positions.long()

    def nbytes(self) -> dict[str, int]:
        total = self.store.nbytes()
        kept = min(total, self.kept * self.shape.token_bytes())
        return {"kept": kept, "tail": total - kept, "positions": self.positions.nbytes}


class WindowCache(EntryCache):
    """The first `sinks` tokens and the last `window`, original positions.

    Entries 0 .. sinks - 1 are the sinks, the next `window` a ring (token p in slot p mod window), then the uncommitted
    tokens: evicting happens at `commit` alone, so that a roll back never misses an evicted token.
    """

    def __init__(self, shape: KVShape, sinks: int, window: int) -> None:
        super().__init__(shape)
        self.sinks, self.window = sinks, window

    def take_prompt(self, full: FullCache) -> Self:
        """The window over a full cache's committed tokens, in a cache that was empty; returns it."""
        self._take(full.store, 0, min(self.sinks, full.tokens))
        recent = max(self.committed, full.tokens - self.window)
        self.tokens = self.committed = recent
        self._take(full.store, recent, full.tokens - recent)
        return self

    def held(self) -> int:
        """Committed tokens held: all of them until the window is full."""
        return min(self.committed, self.sinks + self.window)

    def slot(self, position: int) -> int:
        """The entry of a committed token."""
        return position if position < self.sinks else self.sinks + (position - self.sinks) % self.window

    def entries(self) -> int:
        return self.held() + self.tokens - self.committed

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        source, start = (verified.store, self.committed) if verified is not None else (self.store, self.held())
        self.roll_back()
        self._take(source, start, count)

    def _take(self, source: ExactStore, start: int, count: int) -> None:
        """Commits `count` tokens that lie in `source` from entry `start` on."""
        moved = [source.read_range(layer, start, start + count) for layer in range(self.shape.n_layers)]
        slots = [self.slot(self.committed + i) for i in range(count)]
        for first, last in runs(slots):
            for layer, (k, v) in enumerate(moved):
                part = slice(first, last)
                self.store.write(layer, slots[first], k[:, part].transpose(0, 1), v[:, part].transpose(0, 1))
        super().commit(count)

    def horizon(self) -> int:
        return max(1, self.sinks + self.window - self.committed)

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.store.read_range(layer, 0, self.entries())
        positions = torch.empty(self.entries(), dtype=torch.int64)
        oldest = max(0, self.committed - self.held() + min(self.sinks, self.committed))
        for p in [*range(min(self.sinks, self.committed)), *range(oldest, self.committed)]:
            positions[self.slot(p)] = p
        positions[self.held() :] = torch.arange(self.committed, self.tokens)
        return k, v, positions.expand(self.shape.n_kv_heads, -1)

    def nbytes(self) -> dict[str, int]:
        total = self.store.nbytes()
        kept = min(total, self.held() * self.shape.token_bytes())
        return {"kept": kept, "tail": total - kept}


def runs(slots: list[int]) -> list[tuple[int, int]]:
    """Index ranges [first, last) over which slots ascend one by one."""
    starts = [i for i in range(len(slots)) if i == 0 or slots[i] != slots[i - 1] + 1]
    return list(pairwise([*starts, len(slots)]))
