"""Prompt tokens whose entries stay exact inside a quantised cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcbench.engine.codes.frames import Frame
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.stores import ExactStore, KVShape


class ExactTokens:
    """For each layer some positions, ascending, and their stored keys and values; the model's precision.

    All layers lie one after the other: positions: [N] int32; keys, values: [N * Hk * D].
    """

    def __init__(self, shape: KVShape, positions: Sequence[Tensor]) -> None:
        """positions: [n] of each layer."""
        self._shape, self._ends = shape, [0]
        for layer in positions:
            self._ends.append(self._ends[-1] + len(layer))
        self.positions = (
            torch.cat(list(positions)).to(torch.int32) if self._ends[-1] else torch.empty(0, dtype=torch.int32)
        )
        size = self._ends[-1] * shape.n_kv_heads * shape.head_dim
        self._k = torch.empty(size, dtype=shape.dtype, device=shape.device)
        self._v = torch.empty_like(self._k)

    @classmethod
    def none(cls, shape: KVShape) -> ExactTokens:
        """No token in any layer."""
        return cls(shape, [torch.empty(0)] * shape.n_layers)

    @classmethod
    def of_prompt(cls, full: FullCache, frame: Frame, positions: Sequence[Tensor]) -> ExactTokens:
        """Those tokens of a full cache, as the frame stores them. positions: [n] int64 of each layer, ascending."""
        made = cls(full.shape, positions)
        for layer, chosen in enumerate(positions):
            k, v = full.store.read(layer, chosen.expand(full.shape.n_kv_heads, -1))
            _, keys, values = made.of_layer(layer)
            keys.copy_(frame.turned(k, "keys"))
            values.copy_(frame.turned(v, "values"))
        return made

    @classmethod
    def first_of(cls, shape: KVShape, source: ExactStore, count: int) -> ExactTokens:
        """The first `count` entries of a store, as they are."""
        made = cls(shape, [torch.arange(count, device=shape.device)] * shape.n_layers)
        for layer in range(shape.n_layers):
            for held, entries in zip(made.of_layer(layer)[1:], source.read_range(layer, 0, count), strict=True):
                held.copy_(entries)
        return made

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Positions [n] and stored k, v: [Hk, n, D] of a layer, sharing memory."""
        tokens = slice(self._ends[layer], self._ends[layer + 1])
        vector = self._shape.n_kv_heads * self._shape.head_dim
        span, size = (
            slice(tokens.start * vector, tokens.stop * vector),
            (self._shape.n_kv_heads, -1, self._shape.head_dim),
        )
        n = tokens.stop - tokens.start
        k, v = (x[span].view(size[0], n, size[2]) for x in (self._k, self._v))
        return self.positions[tokens], k, v

    def addresses(self) -> NDArray[np.int64]:
        """For each layer the number of tokens and where their positions, keys and values lie: [L, 4]."""
        ends = np.array(self._ends, np.int64)
        vector = self._shape.n_kv_heads * self._shape.head_dim * self._k.element_size()
        starts, counts = ends[:-1], np.diff(ends)
        positions = self.positions.data_ptr() + self.positions.element_size() * starts
        keys, values = (x.data_ptr() + vector * starts for x in (self._k, self._v))
        return np.stack([counts, positions, keys, values], axis=1)

    def put_into(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Writes the layer's exact keys and values over those in k: [Hk, nk, D], v: [Hk, nv, D] from `start` on."""
        positions, *exact = self.of_layer(layer)
        for target, entries in zip((k, v), exact, strict=True):
            here = (positions >= start) & (positions < start + target.shape[1])
            target[:, positions[here].long() - start] = entries[:, here]

    def __len__(self) -> int:
        return self._ends[-1]

    def tensors(self) -> list[Tensor]:
        """Every tensor held."""
        return [self.positions, self._k, self._v]
