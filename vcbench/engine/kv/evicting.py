"""Draft caches of a fixed number of tokens: at each committed one, what has been attended to least is evicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcbench.engine.kernels.cpu.exact import eviction as kernel
from vcbench.engine.kv.cache import EntryCache, FullCache
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.kv.stores import KVShape, PagedStore

Offsets = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRule:
    """How entries are judged.

    budget: entries held once it is reached; the last `recent` tokens are never evicted, the newest one never either.
    scores: `sum` adds each token's attention to what an entry has (H2O), `latest` replaces it (TOVA).
    shared: heads of a layer keep the same tokens, by the mean over all heads.
    """

    budget: int
    recent: int
    scores: Literal["sum", "latest"]
    shared: bool = False


class EvictingCache(EntryCache):
    """`held` committed tokens a layer and head, then the uncommitted ones.

    positions, scores: [L, Hk, budget + 1], of the first `held` entries. Keys keep the rotation of their original
    position. A token is judged at commits alone, one after the other, each by its own query over what is held then: the
    state depends on the committed tokens and their queries, not on the rounds in which they came. Queries are those of
    the full cache where that has verified the tokens, else this cache's own. A token whose query is unknown changes no
    score; where scores are the latest attention, a token stays until one is known.
    """

    needs_queries = True

    def __init__(self, shape: KVShape, rule: EvictionRule) -> None:
        super().__init__(shape)
        self.rule, self.held = rule, 0
        self.queries = QueryLog()
        size = (shape.n_layers, shape.n_kv_heads, rule.budget + 1)
        self.positions = torch.zeros(size, dtype=torch.int32, device=shape.device)
        self.scores = torch.zeros(size, device=shape.device)

    @classmethod
    def of_prompt(
        cls, full: FullCache, rule: EvictionRule, kept: Sequence[Tensor], scores: Sequence[Tensor]
    ) -> EvictingCache:
        """The prompt's entries at `kept`, [Hk, held] ascending for each layer. scores: [Hk, T] of all of them."""
        cache = cls(full.shape, rule)
        cache.held = kept[0].shape[1]
        for layer, positions in enumerate(kept):
            k, v = full.store.read(layer, positions)
            cache.store.write(layer, 0, k.transpose(0, 1), v.transpose(0, 1))
            cache.positions[layer, :, : cache.held] = positions
            cache.scores[layer, :, : cache.held] = scores[layer].gather(1, positions)
        cache.tokens = cache.committed = full.committed
        return cache

    def entries(self) -> int:
        return self.held + self.tokens - self.committed

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        self.tokens = self.committed
        log = self.queries if verified is None else verified.queries
        if verified is not None:
            self.store.copy_from(verified.store, self.committed, self.held, count)
        first = self.held
        for number in range(count):
            position = self.committed + number
            self._take(first + number, position, None if log is None else log.row(position))
        super().commit(count)
        if self.queries is not None:
            self.queries.keep(self.committed, self.committed)

    def _take(self, entry: int, position: int, queries: list[Tensor] | None) -> None:
        """Makes the token in `entry` one of those held, and evicts another one if they are too many."""
        if entry != self.held:
            self._copy(entry, torch.full(self.positions.shape[:2], self.held, dtype=torch.int64))
        self.positions[..., self.held] = position
        self.scores[..., self.held] = 0 if self.rule.scores == "sum" else float("inf")
        self.held += 1
        if queries is not None:
            self._judge(queries)
        if self.held > self.rule.budget:
            self._evict(position)

    def _judge(self, queries: list[Tensor]) -> None:
        """Takes the newest token's attention into the scores. queries: [H, D] of each layer."""
        shares = self._shares(torch.stack(queries).float())
        if self.rule.shared:
            shares = shares.mean(1, keepdim=True) * (self.shape.n_kv_heads / self.shape.n_heads)
        held = self.scores[..., : self.held]
        if self.rule.scores == "sum":
            held += shares
        else:
            held[:] = shares

    def _shares(self, q: Tensor) -> Tensor:
        """The softmax share of each entry held, summed over a KV head's query heads: [L, Hk, held]."""
        heads = self.shape.n_kv_heads
        if isinstance(self.store, PagedStore):
            keys_at, _, head_bytes = layout(self.store)
            shares = torch.empty((self.shape.n_layers, heads, self.held))
            table = self.store.table()
            kernel.attention_shares(q.contiguous().numpy(), table, keys_at, head_bytes, self.held, shares.numpy())
            return shares
        keys = self.store.tensors()[0][:, :, : self.held].float()
        logits = (q.unflatten(1, (heads, -1))[..., None, :] * keys[:, :, None]).sum(-1) * q.shape[2] ** -0.5
        return torch.softmax(logits, -1).sum(2)

    def _evict(self, newest: int) -> None:
        """Drops the least of each head's entries, of equal ones the earliest, and puts the last entry in its place."""
        protected = self.positions > newest - max(1, self.rule.recent)
        scores = self.scores.masked_fill(protected, float("inf"))
        least = scores == scores.amin(-1, keepdim=True)
        earliest = self.positions.masked_fill(~least | protected, torch.iinfo(torch.int32).max)
        victims = earliest.argmin(-1)
        last = self.held - 1
        self._copy(last, victims)
        for table in (self.positions, self.scores):
            table.scatter_(2, victims[..., None], table[..., last : last + 1].clone())
        self.held = last

    def _copy(self, source: int, targets: Tensor) -> None:
        """Copies an entry over another of each layer and head. targets: [L, Hk], int64."""
        if isinstance(self.store, PagedStore):
            keys_at, values_at, head_bytes = layout(self.store)
            kernel.copy_entry(
                self.store.table(), keys_at, values_at, head_bytes, self.store.width, self.shape.head_dim, source,
                targets.numpy(),
            )  # fmt: skip
            return
        for table in self.store.tensors():
            taken = table[:, :, source : source + 1].clone()
            table.scatter_(2, targets[..., None, None].expand(taken.shape), taken)

    def horizon(self) -> int:
        return max(1, self.rule.budget - self.held + 1)

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.store.read_range(layer, 0, self.entries())
        since = torch.arange(self.committed, self.tokens, dtype=torch.int32, device=k.device)
        held = self.positions[layer, :, : self.held]
        positions = torch.cat([held, since.expand(self.shape.n_kv_heads, -1)], dim=1)
        return k, v, positions.long()

    def nbytes(self) -> dict[str, int]:
        total = self.store.nbytes()
        kept = min(total, self.held * self.shape.token_bytes())
        return {
            "kept": kept,
            "tail": total - kept,
            "positions": self.positions.nbytes,
            "scores": self.scores.nbytes,
            "queries": 0 if self.queries is None else self.queries.nbytes(),
        }


def layout(store: PagedStore) -> tuple[Offsets, Offsets, int]:
    """Byte offsets of each layer's keys and of its values inside a page, and bytes between heads."""
    keys, values, heads = zip(*(store.layout(layer) for layer in range(store.shape.n_layers)), strict=True)
    return np.array(keys, np.int64), np.array(values, np.int64), heads[0]
