"""What a KV cache is to the decoder, and the full one.

Life of the entries of one forward pass over n tokens: for each layer `write`, then `attend`; `advance(n)` after the
last layer. They stay uncommitted until `commit`, and `roll_back` forgets them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from vcbench.engine.attention.device import on_gpu
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.kv.stores import ExactStore, KVShape, PageBatch, PagedStore, PageRows, make_store


class Joined(Protocol):
    """Several caches that one kernel call a layer serves; rows lie one request after the other."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Stores k, v: [n, Hk, D] as `KVCache.write` does in each cache."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D] as `KVCache.attend` gives it in each cache; returns [n, H, D]."""


class KVCache(ABC):
    """Keys and values of one request. `tokens` counts true positions held, committed and not."""

    needs_queries = False
    """Whether committing uses the queries of the verified tokens, which the full cache must then log."""
    constants: ClassVar[tuple[str, ...] | None] = None
    """Attributes that nothing changes once a prompt is compressed, so that copies share them; None: no copy can be had,
    as of a cache that holds addresses of its own tensors and does not find them anew."""

    def __init__(self, shape: KVShape, tokens: int = 0) -> None:
        self.shape = shape
        self.tokens = tokens
        self.committed = tokens
        self.queries: QueryLog | None = None
        """Where the decoder takes down its queries against this cache, if anywhere."""

    @abstractmethod
    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Stores post-RoPE k, v: [n, Hk, D] of the tokens at positions `tokens` .. `tokens` + n - 1."""

    @abstractmethod
    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D], the tokens just written; each sees all entries up to its own."""

    @abstractmethod
    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """k, v: [Hk, n, D] as attention sees them, and the tokens' positions [Hk, n]. The reference path of tests."""

    @abstractmethod
    def nbytes(self) -> dict[str, int]:
        """Bytes held, by part; the sum is that of every tensor reachable from this object."""

    def join(self, parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
        """These caches, this one first, with their numbers of rows, made ready for one pass; None if they cannot be.

        No row's bits depend on what else is joined.
        """
        return None

    def fork(self) -> Self | None:
        """A second cache in the same state; what becomes of one does not show in the other. None if none can be had.

        Cost: a copy of the bytes held.
        """
        if self.constants is None:
            return None
        shared = (self.shape, *(getattr(self, name) for name in self.constants))
        return copy.deepcopy(self, {id(one): one for one in shared})

    def advance(self, count: int) -> None:
        """Counts the tokens written by a complete forward pass."""
        self.tokens += count

    def roll_back(self) -> None:
        """Forgets every uncommitted entry."""
        self.tokens = self.committed
        if self.queries is not None:
            self.queries.keep(0, self.committed)

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        """Makes the first `count` uncommitted tokens permanent and forgets the others.

        With `verified`, their entries are first replaced by those of the full cache. A cache that compresses while
        decoding does so here and nowhere else.
        """
        self.tokens = self.committed + count
        if self.queries is not None:
            self.queries.keep(self.committed, self.tokens)
        self.committed = self.tokens

    def horizon(self) -> int:
        """How many tokens can be appended in one pass before committing them one by one would have changed a row."""
        return 1 << 30


class PagedCache(KVCache):
    """A cache that may hold all of its entries in exact pages, and be joined with others that do."""

    @abstractmethod
    def page_rows(self, count: int) -> PageRows | None:
        """The next `count` tokens' rows over this cache's pages, room made for them; None if it has none."""

    def join(self, parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
        if on_gpu(self.shape.device):
            from vcbench.engine.attention.gpu_exact import join_exact

            return join_exact(parts)
        requests = [cache.page_rows(rows) if isinstance(cache, PagedCache) else None for cache, rows in parts]
        ready = [request for request in requests if request is not None]
        if len(ready) < len(parts) or len({request.layers is None for request in ready}) > 1:
            return None
        return PageBatch(self.shape, ready)


class EntryCache(PagedCache):
    """A cache whose attention runs over entries 0, 1, 2, ... of one exact store, uncommitted tokens last."""

    constants: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, shape: KVShape, tokens: int = 0, store: ExactStore | None = None) -> None:
        super().__init__(shape, tokens)
        self.store: ExactStore = make_store(shape) if store is None else store

    @abstractmethod
    def entries(self) -> int:
        """Entries in use, uncommitted ones included; the next token becomes entry `entries()`."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.store.write(layer, self.entries(), k, v)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return self.store.attend(layer, q, self.entries() + 1)

    def page_rows(self, count: int) -> PageRows | None:
        if not isinstance(self.store, PagedStore):
            return None
        self.store.reserve(self.entries() + count)
        return self.store.rows(self.entries(), count)


class FullCache(EntryCache):
    """Every token's exact entry; entry i is position i."""

    def entries(self) -> int:
        return self.tokens

    def moved_to(self, store: ExactStore) -> FullCache:
        """The same committed tokens, in a store that was empty; this one stays as it is."""
        store.copy_from(self.store, 0, 0, self.committed)
        return FullCache(self.shape, self.committed, store)

    def rewind(self, tokens: int) -> None:
        """Forgets everything from position `tokens` on, committed or not: how each cell returns to the snapshot."""
        if tokens > self.tokens:
            raise ValueError(f"cannot rewind to {tokens}: the cache holds {self.tokens} tokens")
        self.tokens = self.committed = tokens
        self.queries = None
        self.store.release(tokens)

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.store.read_range(layer, 0, self.tokens)
        positions = torch.arange(self.tokens).expand(self.shape.n_kv_heads, -1)
        return k, v, positions

    def nbytes(self) -> dict[str, int]:
        logged = 0 if self.queries is None else self.queries.nbytes()
        return {"kv": self.store.nbytes() + logged}

    def tiers(self) -> dict[str, int]:
        """Bytes by tier, those that hold any; what a cache on disk has in memory are its buffers."""
        tiers = {"memory": sum(self.nbytes().values()), "disk": self.store.disk_bytes()}
        return {tier: count for tier, count in tiers.items() if count}
