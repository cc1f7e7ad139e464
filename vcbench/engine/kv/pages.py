"""Exact entries on CPU in float32: pages of 64, keys transposed inside a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vcbench.engine.kernels.cpu.exact import attention, pages
from vcbench.engine.kernels.cpu.simd import LANES
from vcbench.engine.kv.shape import KVShape, Spans
from vcbench.engine.kv.store import ExactStore, PageView


class PagedStore(ExactStore):
    """CPU float32: pages of 64 entries holding all layers, keys transposed inside a page.

    A page is [L, 2, Hk, W, 64] float32, W = D rounded up to the vector width; keys use [D, 64], values [64, W].
    """

    def __init__(self, shape: KVShape) -> None:
        super().__init__(shape)
        self.width = -(-shape.head_dim // LANES) * LANES
        self._pages: list[Tensor] = []
        self._table = np.empty(0, np.int64)
        self._head_bytes = self.width * attention.BLOCK * 4

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy's pages lie elsewhere."""
        self.__dict__.update(state)
        self._find_pages()

    def _find_pages(self) -> None:
        self._table = np.array([page.data_ptr() for page in self._pages], np.int64)

    def _offsets(self, layer: int) -> tuple[int, int]:
        per_kind = self.shape.n_kv_heads * self._head_bytes
        return 2 * layer * per_kind, (2 * layer + 1) * per_kind

    def reserve(self, entries: int) -> None:
        missing = -(-entries // attention.BLOCK) - len(self._pages)
        if missing <= 0:
            return
        size = (self.shape.n_layers, 2, self.shape.n_kv_heads, self.width, attention.BLOCK)
        self._pages += [torch.zeros(size) for _ in range(missing)]
        self._find_pages()

    def release(self, entries: int) -> None:
        del self._pages[-(-entries // attention.BLOCK) :]
        self._table = self._table[: len(self._pages)].copy()

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        self.reserve(start + k.shape[0])
        keys_at, values_at = self._offsets(layer)
        pages.write_entries(
            self._table, keys_at, values_at, self._head_bytes, self.width, start, c_array(k), c_array(v)
        )

    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        self.check(int(entries.max()) + 1 if entries.numel() else 0)
        keys_at, values_at = self._offsets(layer)
        k = torch.empty((*entries.shape, self.shape.head_dim))
        v = torch.empty_like(k)
        pages.read_entries(
            self._table, keys_at, values_at, self._head_bytes, self.width, c_array(entries), k.numpy(), v.numpy()
        )
        return k, v

    def view(self, layer: int) -> PageView:
        return PageView(self._table, *self.layout(layer))

    def rows(self, entry: int, count: int) -> PageRows:
        """`count` rows that see, and may become, entries up to `entry`, `entry` + 1, ...; same for every layer."""
        self.check(entry + count)
        table = self._table[: (entry + count - 1) // attention.BLOCK + 1]
        span = [[0, count, 0, self.shape.n_kv_heads, entry + 1, 0, *self._offsets(0)]]
        return PageRows(np.array(span, np.int64), table, count)

    def drop_front(self, entries: int) -> None:
        del self._pages[: entries // attention.BLOCK]
        self._table = self._table[entries // attention.BLOCK :].copy()

    def tensors(self) -> list[Tensor]:
        return self._pages

    def table(self) -> np.ndarray[Any, Any]:
        """int64 addresses of the pages; valid until the store next grows or shrinks."""
        return self._table

    def layout(self, layer: int) -> tuple[int, int, int]:
        """Byte offsets of a layer's keys and values inside a page, and bytes between KV heads."""
        return (*self._offsets(layer), self._head_bytes)

    def check(self, entries: int) -> None:
        """Raises IndexError unless there is room for this many entries."""
        if entries > len(self._pages) * attention.BLOCK:
            raise IndexError(f"entry {entries - 1} of a store that holds {len(self._pages) * attention.BLOCK}")


@dataclass(frozen=True, slots=True)
class PageRows:
    """One request's rows and the pages that they see. Valid while the stores neither grow nor shrink.

    spans: [S, SPAN_FIELDS], rows and tables counted from 0; `layers`: [S], the layer of each, or None where all serve
    every layer of one store.
    """

    spans: Spans
    tables: Spans
    count: int
    layers: Spans | None = None


def c_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor as a C-contiguous numpy array, sharing memory where it can."""
    return tensor.contiguous().numpy()
