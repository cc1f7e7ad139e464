"""What a KV cache is to the decoder, and the full one.

Life of the entries of one forward pass over n tokens: for each layer `write`, then attention (`engine.attention` has
it); `advance(n)` after the last layer. They stay uncommitted until `commit`. Until then `roll_back` keeps as many of
them as are still wanted, and `refresh` puts those of a better cache in their place.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from vcbench.engine.kv.make import make_store
from vcbench.engine.kv.pages import PagedStore, PageRows
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.kv.store import ExactStore


class EntrySource(Protocol):
    """A cache that has taken in the tokens that another one is about to keep, and knows their entries better."""

    @property
    def committed(self) -> int:
        """Tokens that it has committed."""

    @property
    def queries(self) -> QueryLog | None:
        """What was asked at the positions of the uncommitted ones, where that is logged."""

    def uncommitted(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, count, D] of the first `count` uncommitted tokens, exact and post-RoPE."""


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

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D], the tokens just written; each sees all entries up to its own.

        Asked for where `attention.readers` knows no kernel for the class: a cache of a plug-in's own brings its own.
        """
        raise NotImplementedError(f"{type(self).__name__} neither has attention of its own nor is known to a reader")

    @abstractmethod
    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """k, v: [Hk, n, D] as attention sees them, and the tokens' positions [Hk, n]. The reference path of tests."""

    @abstractmethod
    def uncommitted(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, count, D] of the first `count` uncommitted tokens, as they were written (up to rounding)."""

    @abstractmethod
    def nbytes(self) -> dict[str, int]:
        """Bytes held, by part; the sum is that of every tensor reachable from this object."""

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

    def roll_back(self, keep: int = 0) -> None:
        """Forgets the uncommitted tokens but the first `keep`. Raises ValueError if there are not as many."""
        held = self.tokens - self.committed
        if not 0 <= keep <= held:
            raise ValueError(f"cannot keep {keep} of {held} uncommitted tokens")
        self.tokens = self.committed + keep
        if self.queries is not None:
            self.queries.keep(0, self.tokens)

    def refresh(self, count: int, source: EntrySource) -> None:
        """Holds `count` uncommitted tokens from here on, with the source's entries, however many there were before.

        Raises ValueError for a source that has committed other tokens.
        """
        if source.committed != self.committed:
            raise ValueError(f"{source.committed} tokens are committed in the source, {self.committed} here")
        self.roll_back()
        for layer in range(self.shape.n_layers if count else 0):
            k, v = source.uncommitted(layer, count)
            self.write(layer, k.transpose(0, 1), v.transpose(0, 1))
        self.advance(count)

    def commit(self, count: int, source: EntrySource | None = None) -> None:
        """Makes the first `count` uncommitted tokens permanent and forgets the others.

        With a source, which has not committed them yet, their entries are first replaced by its own. A cache that
        compresses while decoding does so here (`settle`) and nowhere else.
        """
        if source is None:
            self.roll_back(count)
        else:
            self.refresh(count, source)
        start = self.committed
        self.settle(count, self.queries if source is None else source.queries)
        self.committed = self.tokens
        if self.queries is not None:
            self.queries.keep(start, self.tokens)

    def settle(self, count: int, queries: QueryLog | None) -> None:  # noqa: B027 - most caches need not do anything
        """Does what a method does to its entries as `count` tokens, all that are uncommitted, become permanent.

        queries: what was asked at their positions, where that is known.
        """

    def horizon(self) -> int:
        """How many tokens can be appended in one pass before committing them one by one would have changed a row."""
        return 1 << 30


class PagedCache(KVCache):
    """A cache that may hold all of its entries in exact pages, and be joined with others that do."""

    @abstractmethod
    def page_rows(self, count: int) -> PageRows | None:
        """The next `count` tokens' rows over this cache's pages, room made for them; None if it has none."""


class EntryCache(PagedCache):
    """A cache whose attention runs over entries 0, 1, 2, ... of one exact store, uncommitted tokens last."""

    constants: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, shape: KVShape, tokens: int = 0, store: ExactStore | None = None) -> None:
        super().__init__(shape, tokens)
        self.store: ExactStore = make_store(shape) if store is None else store

    @abstractmethod
    def entries(self) -> int:
        """Entries in use, uncommitted ones included; the next token becomes entry `entries()`."""

    def uncommitted(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        first = self.entries() - (self.tokens - self.committed)
        return self.store.read_range(layer, first, first + count)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.store.write(layer, self.entries(), k, v)

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

    def reread_bytes(self) -> int:
        """Bytes that were read back from a tier out of memory."""
        return self.store.reread_bytes()

    def tiers(self) -> dict[str, int]:
        """Bytes by tier, those that hold any; what a cache on disk has in memory are its buffers."""
        tiers = {"memory": sum(self.nbytes().values()), "disk": self.store.disk_bytes()}
        return {tier: count for tier, count in tiers.items() if count}
