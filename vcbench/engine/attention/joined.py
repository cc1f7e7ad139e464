"""What caches that are read together look like to a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from vcbench.engine.kv.cache import KVCache

Parts = Sequence[tuple[KVCache, int]]
"""Each request's cache and number of rows; rows lie one request after the other."""


class Joined(Protocol):
    """Several caches that one kernel call a layer serves. No row's bits depend on what else is joined."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Stores k, v: [n, Hk, D] as `KVCache.write` does in each cache."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D] as `readers.attend` gives it for each cache; returns [n, H, D]."""


Join = Callable[[Parts], Joined | None]
"""Caches made ready for one pass; None if they cannot be read together."""
