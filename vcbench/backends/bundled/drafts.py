"""Draft caches of a batch: a method compresses a prompt once, and each cell that shares the method gets its own cache.

A cell is charged what compressing took, whichever cell it was done for: that is what the cell would need by itself.
Copying is an artefact of running cells side by side and charged to nobody.

Memory: of each cache that is still wanted one unused copy is kept, and of all together no more bytes than the batch's
full caches take, or 64 MiB where that is more; what does not fit is compressed anew. A cache is copied and not rolled
back, since codes and evicted entries do not come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vcbench.compressors.base import Compressor
from vcbench.engine.clock import now
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Prefill
from vcbench.engine.model.observe import Statistic

ALWAYS_KEPT = 1 << 26
"""Bytes that may be kept whatever the full caches take: short prompts fill few of their caches' pages."""
Key = tuple[str, int]
"""A method's name and a prefill's identity."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A cache that nobody has used, what it took to make, and its bytes."""

    cache: KVCache
    seconds: float
    nbytes: int


class Drafts:
    """The draft caches of one batch of prompts."""

    def __init__(self) -> None:
        self._kept: dict[Key, _Kept] = {}
        self._wanted: Counter[Key] = Counter()
        self._prefills: dict[int, Prefill] = {}
        self._limit = 0

    def expect(self, prefill: Prefill, method: str, uses: int) -> None:
        """Says how often a prompt's cache will be asked for. Prefills are held on to."""
        if id(prefill) not in self._prefills:
            self._prefills[id(prefill)] = prefill
            self._limit += sum(prefill.cache.nbytes().values())
        self._wanted[method, id(prefill)] += uses

    def take(self, key: Key, make: Callable[[], KVCache], device: torch.device) -> tuple[KVCache, float, bool]:
        """A cache of its own for the caller, the seconds that making one takes, and whether it was not made for it."""
        self._wanted[key] -= 1
        kept = self._kept.get(key)
        if kept is None:
            started = now(device)
            cache = make()
            seconds = now(device) - started
            self._keep(key, cache, seconds)
            return cache, seconds, False
        if self._wanted[key] > 0 and (copy := kept.cache.fork()) is not None:
            return copy, kept.seconds, True
        del self._kept[key]
        return kept.cache, kept.seconds, True

    def held_bytes(self) -> int:
        """Bytes of the copies that are kept."""
        return sum(kept.nbytes for kept in self._kept.values())

    def _keep(self, key: Key, cache: KVCache, seconds: float) -> None:
        """Keeps a copy of a cache that will be asked for again, where there is room for it."""
        size = sum(cache.nbytes().values())
        room = max(self._limit, ALWAYS_KEPT) - self.held_bytes()
        if self._wanted[key] > 0 and size <= room and (copy := cache.fork()) is not None:
            self._kept[key] = _Kept(copy, seconds, size)


class SharedCompressor:
    """A method's compressor for one run of one cell. It compresses as the method does, or hands out what it has made.

    copied: how many of the caches handed out had been made for another cell.
    """

    def __init__(self, method: str, compressor: Compressor[Any], drafts: Drafts) -> None:
        self._method, self._compressor, self._drafts = method, compressor, drafts
        self.copied = 0
        self._uncharged: dict[int, float] = {}

    @property
    def query_window(self) -> int:
        """As the method's."""
        return self._compressor.query_window

    @property
    def statistics(self) -> tuple[Statistic[Any], ...]:
        """As the method's."""
        return self._compressor.statistics

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        """A draft cache for the prompt, with the same bits whether made or copied."""
        device = prefill.cache.shape.device
        started = now(device)
        make = lambda: self._compressor.compress(prefill, seed=seed)  # noqa: E731
        cache, seconds, copied = self._drafts.take((self._method, id(prefill)), make, device)
        self.copied += copied
        self._uncharged[id(prefill)] = seconds - (now(device) - started)
        return cache

    def uncharged_s(self, prefill: Prefill) -> float:
        """What compressing a prompt takes, less what handing out its cache took here: the difference to be charged."""
        return self._uncharged.get(id(prefill), 0.0)
