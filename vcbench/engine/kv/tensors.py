"""Exact entries as plain tensors, for any device and precision."""

from __future__ import annotations

import torch
from torch import Tensor

from vcbench.engine.kv.shape import KVShape
from vcbench.engine.kv.store import ExactStore, TensorView


class TensorStore(ExactStore):
    """Any device and precision. Keys and values: [L, Hk, capacity, D], room being made `CHUNK` entries at a time."""

    CHUNK = 256

    def __init__(self, shape: KVShape) -> None:
        super().__init__(shape)
        self._k = self._empty(0)
        self._v = self._empty(0)

    def _empty(self, capacity: int) -> Tensor:
        s = self.shape
        return torch.zeros((s.n_layers, s.n_kv_heads, capacity, s.head_dim), dtype=s.dtype, device=s.device)

    def reserve(self, entries: int) -> None:
        held = self._k.shape[2]
        if entries <= held:
            return
        capacity = -(-entries // self.CHUNK) * self.CHUNK
        k, v = self._empty(capacity), self._empty(capacity)
        k[:, :, :held], v[:, :, :held] = self._k, self._v
        self._k, self._v = k, v

    def release(self, entries: int) -> None:
        capacity = -(-entries // self.CHUNK) * self.CHUNK
        if capacity < self._k.shape[2]:
            self._k, self._v = self._k[:, :, :capacity].clone(), self._v[:, :, :capacity].clone()

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        self.reserve(start + k.shape[0])
        self._k[layer, :, start : start + k.shape[0]] = k.transpose(0, 1)
        self._v[layer, :, start : start + v.shape[0]] = v.transpose(0, 1)

    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        index = entries.unsqueeze(-1).expand(-1, -1, self.shape.head_dim)
        return self._k[layer].gather(1, index), self._v[layer].gather(1, index)

    def view(self, layer: int) -> TensorView:
        return TensorView(self._k[layer], self._v[layer])

    def drop_front(self, entries: int) -> None:
        self._k, self._v = self._k[:, :, entries:].clone(), self._v[:, :, entries:].clone()

    def tensors(self) -> list[Tensor]:
        return [self._k, self._v]
