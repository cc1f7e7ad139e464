"""Exact storage of keys and values, in the precision of the model. It holds entries and computes nothing with them.

A store knows entries 0, 1, 2, ... and nothing of positions: a cache decides which token an entry holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.engine.kv.shape import KVShape, Spans


@dataclass(frozen=True, slots=True)
class PageView:
    """A layer in pages: addresses of the pages, byte offsets of keys and values inside one, bytes between KV heads."""

    table: Spans
    keys_at: int
    values_at: int
    head_bytes: int


@dataclass(frozen=True, slots=True)
class TensorView:
    """A layer as tensors with all room for more; k, v: [Hk, capacity, D]."""

    k: Tensor
    v: Tensor


LayerView = PageView | TensorView


class ExactStore(ABC):
    """Entries of all layers. Writing past the end grows the store; entries past a writer's own count are garbage."""

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape

    @abstractmethod
    def reserve(self, entries: int) -> None:
        """Makes room for this many entries."""

    @abstractmethod
    def release(self, entries: int) -> None:
        """Gives back the memory that is not needed for the first `entries` entries."""

    @abstractmethod
    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Stores k, v: [n, Hk, D] as entries start .. start + n - 1 of a layer."""

    @abstractmethod
    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, n, D] of the entries [Hk, n] (int64), head by head."""

    @abstractmethod
    def view(self, layer: int) -> LayerView:
        """A layer as attention takes it; valid until the store next grows, shrinks or hands out a view."""

    @abstractmethod
    def drop_front(self, entries: int) -> None:
        """Forgets the first `entries` entries, a multiple of 64; the others move down by as many."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Every tensor held."""

    def read_range(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, stop - start, D] of consecutive entries."""
        entries = torch.arange(start, stop, device=self.shape.device)
        return self.read(layer, entries.expand(self.shape.n_kv_heads, -1))

    def copy_from(self, other: ExactStore, source: int, target: int, count: int) -> None:
        """Copies `count` consecutive entries of every layer from another store."""
        for layer in range(self.shape.n_layers):
            k, v = other.read_range(layer, source, source + count)
            self.write(layer, target, k.transpose(0, 1), v.transpose(0, 1))

    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def disk_bytes(self) -> int:
        """Bytes held in a file."""
        return 0

    def reread_bytes(self) -> int:
        """Bytes that have been read back from a file to attend to them, reading ahead included."""
        return 0
