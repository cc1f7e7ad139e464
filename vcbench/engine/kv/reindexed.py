"""A window cache whose tokens have the positions that they take in the cache, not those that they have in the text."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from vcbench.engine.kv.kept import WindowCache
from vcbench.engine.kv.stores import ExactStore, KVShape
from vcbench.engine.rope import RopeTable


class ReindexedCache(WindowCache):
    """As `WindowCache`, with cache entries 0, 1, 2, ... for positions and the next token's query at the position after.

    Rotary attention sees differences of positions alone, and those between the query and the window's tokens are the
    same either way: only the sinks move up, by as many positions as tokens were evicted. Their keys are kept as they
    were before the rotary embedding and turned anew when that number changes, which it does at commits.
    """

    constants: ClassVar[tuple[str, ...] | None] = ("_rope",)

    def __init__(self, shape: KVShape, sinks: int, window: int, rope: RopeTable) -> None:
        super().__init__(shape, sinks, window)
        self._rope = rope
        size = (shape.n_layers, shape.n_kv_heads, 0, shape.head_dim)
        self.sink_keys = torch.zeros(size, device=shape.device)
        """Pre-RoPE keys of the sinks committed so far: [L, Hk, n, D], float32."""

    def evicted(self) -> int:
        """Tokens between the sinks and the window that are no longer held."""
        return self.committed - self.held()

    def _take(self, source: ExactStore, start: int, count: int) -> None:
        known, before = self.sink_keys.shape[2], self.evicted()
        super()._take(source, start, count)
        if known < min(self.sinks, self.committed):
            keys, _ = self._sinks(known)
            self.sink_keys = torch.cat([self.sink_keys, self._rope.unrotated(keys, known)], dim=2)
        if self.evicted() != before:
            self._move_sinks()

    def _sinks(self, first: int) -> tuple[Tensor, Tensor]:
        """k, v: [L, Hk, n, D] of the sinks held from entry `first` on."""
        last = min(self.sinks, self.committed)
        read = [self.store.read_range(layer, first, last) for layer in range(self.shape.n_layers)]
        return torch.stack([k for k, _ in read]), torch.stack([v for _, v in read])

    def _move_sinks(self) -> None:
        keys = self._rope.rotated(self.sink_keys, self.evicted()).to(self.shape.dtype)
        _, values = self._sinks(0)
        for layer in range(self.shape.n_layers):
            self.store.write(layer, 0, keys[layer].transpose(0, 1), values[layer].transpose(0, 1))

    def nbytes(self) -> dict[str, int]:
        return {**super().nbytes(), "sink_keys": self.sink_keys.nbytes}
