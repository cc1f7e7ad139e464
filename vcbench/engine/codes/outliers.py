"""Numbers that stay exact inside blocks of codes, in sparse form: what their codes miss, places, where tiles begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcbench.engine.codes.packing import HALF_MAX
from vcbench.engine.kv.stores import KVShape


class Outliers:
    """Of each layer, by block of tokens and KV head: a tile's outliers lie together, tiles in order block, head.

    numbers: float16, to be added to what the codes stand for; places: int16, ascending, index within the tile; starts:
    int32, [blocks * Hk + 1] where each tile begins.
    """

    def __init__(self, shape: KVShape) -> None:
        self._heads = shape.n_kv_heads
        self._numbers, self._places, self._starts = (
            [torch.zeros(size, dtype=dtype, device=shape.device) for _ in range(shape.n_layers)]
            for size, dtype in ((0, torch.float16), (0, torch.int16), (1, torch.int32))
        )

        self._addresses: NDArray[np.int64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the addresses, which are those of these tensors and not of a copy's."""
        return {**self.__dict__, "_addresses": None}

    def append(self, layer: int, tiles: Tensor, marked: Tensor) -> None:
        """Appends the marked numbers of further blocks, which have at most 32,768 each.

        tiles: [blocks, Hk, size], what the codes miss; marked: bool, of the same shape.
        """
        self._addresses = None
        tile, place = marked.flatten(0, 1).nonzero(as_tuple=True)
        counts = torch.bincount(tile, minlength=marked.shape[0] * self._heads)
        starts = self._starts[layer]
        numbers = tiles[marked].clamp(-HALF_MAX, HALF_MAX).half()
        self._numbers[layer] = torch.cat([self._numbers[layer], numbers])
        self._places[layer] = torch.cat([self._places[layer], place.to(torch.int16)])
        self._starts[layer] = torch.cat([starts, (starts[-1] + counts.cumsum(0)).to(torch.int32)])

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """numbers, places and starts."""
        return self._numbers[layer], self._places[layer], self._starts[layer]

    def addresses(self) -> NDArray[np.int64]:
        """Of each layer, where its numbers, places and starts lie: [L, 3]; zeros if there are no outliers at all."""
        if self._addresses is None:
            parts = zip(self._numbers, self._places, self._starts, strict=True)
            found = [[x.data_ptr() for x in layer] for layer in parts] if len(self) else []
            self._addresses = np.array(found, np.int64) if found else np.zeros((len(self._numbers), 3), np.int64)
        return self._addresses

    def add_to(self, layer: int, first: int, tiles: Tensor) -> None:
        """Adds the outliers of blocks from `first` on to tiles: [blocks, Hk, size] float32, contiguous."""
        numbers, places, starts = self.of_layer(layer)
        bounds = starts[first * self._heads : (first + tiles.shape[0]) * self._heads + 1].long()
        if len(bounds) < 2:
            return
        span = slice(int(bounds[0]), int(bounds[-1]))
        tile = torch.repeat_interleave(torch.arange(len(bounds) - 1, device=tiles.device), bounds.diff())
        tiles.view(len(bounds) - 1, -1)[tile, places[span].long()] += numbers[span].float()

    def __len__(self) -> int:
        return sum(map(len, self._numbers))

    def tensors(self) -> list[Tensor]:
        """Every tensor held."""
        return [*self._numbers, *self._places, *self._starts]
