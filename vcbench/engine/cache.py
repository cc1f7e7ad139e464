"""What a KV cache is to the decoder, and the full one.

Life of the entries of one forward pass over n tokens: for each layer `write`, then `attend`; `advance(n)` after the
last layer. They stay uncommitted until `commit`, and `roll_back` forgets them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from vcbench.engine.stores import ExactStore, KVShape, make_store


class KVCache(ABC):
    """Keys and values of one request. `tokens` counts true positions held, committed and not."""

    def __init__(self, shape: KVShape, tokens: int = 0) -> None:
        self.shape = shape
        self.tokens = tokens
        self.committed = tokens

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

    def advance(self, count: int) -> None:
        """Counts the tokens written by a complete forward pass."""
        self.tokens += count

    def roll_back(self) -> None:
        """Forgets every uncommitted entry."""
        self.tokens = self.committed

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        """Makes the first `count` uncommitted tokens permanent and forgets the others.

        With `verified`, their entries are first replaced by those of the full cache. A cache that compresses while
        decoding does so here and nowhere else.
        """
        self.tokens = self.committed + count
        self.committed = self.tokens

    def horizon(self) -> int:
        """How many tokens can be appended in one pass before committing them one by one would have changed a row."""
        return 1 << 30


class EntryCache(KVCache):
    """A cache whose attention runs over entries 0, 1, 2, ... of one exact store, uncommitted tokens last."""

    def __init__(self, shape: KVShape, tokens: int = 0) -> None:
        super().__init__(shape, tokens)
        self.store: ExactStore = make_store(shape)

    @abstractmethod
    def entries(self) -> int:
        """Entries in use, uncommitted ones included; the next token becomes entry `entries()`."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.store.write(layer, self.entries(), k, v)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return self.store.attend(layer, q, self.entries() + 1)


class FullCache(EntryCache):
    """Every token's exact entry; entry i is position i."""

    def entries(self) -> int:
        return self.tokens

    def rewind(self, tokens: int) -> None:
        """Forgets everything from position `tokens` on, committed or not: how each cell returns to the snapshot."""
        if tokens > self.tokens:
            raise ValueError(f"cannot rewind to {tokens}: the cache holds {self.tokens} tokens")
        self.tokens = self.committed = tokens
        self.store.release(tokens)

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.store.read_range(layer, 0, self.tokens)
        positions = torch.arange(self.tokens).expand(self.shape.n_kv_heads, -1)
        return k, v, positions

    def nbytes(self) -> dict[str, int]:
        return {"kv": self.store.nbytes()}
