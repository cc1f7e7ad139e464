"""Exact entries in pages on CPU: a ragged batch is one kernel call a layer."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from vcbench.engine.kernels.cpu.exact import attention, pages
from vcbench.engine.kernels.cpu.simd import LANES
from vcbench.engine.kv.cache import KVCache, PagedCache
from vcbench.engine.kv.pages import PageRows, c_array
from vcbench.engine.kv.shape import KVShape, Spans
from vcbench.engine.kv.store import PageView

PIECE_TOKENS = 32
"""Tokens of one request that a kernel task takes at a time, so that their state stays in the nearest caches."""

GROUP_FLOATS = 1 << 22
"""Bound on the partial results of one kernel call, in float32 elements: 16 MiB."""


class PageBatch:
    """A ragged batch over paged stores, ready to write and attend in any layer; rows lie request after request."""

    def __init__(self, shape: KVShape, requests: Sequence[PageRows]) -> None:
        """All requests in one shape, and alike in whether their spans have layers."""
        self._shape, self._width = shape, -(-shape.head_dim // LANES) * LANES
        self.head_bytes = self._width * attention.BLOCK * 4
        spans, row, page = [], 0, 0
        for request in requests:
            moved = request.spans.copy()
            moved[:, attention.ROW] += row
            moved[:, attention.TABLE] += page
            spans.append(moved)
            row, page = row + request.count, page + len(request.tables)
        self.spans = np.concatenate(spans)
        self.tables = np.concatenate([request.tables for request in requests])
        given = [request.layers for request in requests if request.layers is not None]
        self._of_layer = [self.spans] * shape.n_layers
        if given:
            layers = np.concatenate(given)
            self._of_layer = [self.spans[layers == layer] for layer in range(shape.n_layers)]
        self._whole_stores = not given
        self._pieces: list[list[Spans]] = []

    def layer_bytes(self, layer: int) -> int:
        """Bytes from a page's first layer to this one."""
        return 2 * layer * self._shape.n_kv_heads * self.head_bytes if self._whole_stores else 0

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Stores k, v: [n, Hk, D], each row as the last entry that it sees."""
        spans, shift = self._of_layer[layer], self.layer_bytes(layer)
        pages.write_rows(c_array(k), c_array(v), spans, self.tables, shift, self.head_bytes, self._width)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D]; returns [n, H, D]."""
        heads = self._shape.n_kv_heads
        out = torch.empty((q.shape[0], heads, self._shape.n_heads // heads, self._shape.head_dim))
        shift, rows, target, workers = self.layer_bytes(layer), c_array(q), out.numpy(), numba.get_num_threads()
        for spans in self._layer_pieces(layer):
            attention.attend_pages(workers, rows, spans, self.tables, shift, self.head_bytes, self._width, target)
        return out.view(q.shape)

    def _layer_pieces(self, layer: int) -> list[Spans]:
        if not self._pieces:
            if self._whole_stores:
                self._pieces = [pieces_of(self._shape, self.spans)] * self._shape.n_layers
            else:
                self._pieces = [pieces_of(self._shape, spans) for spans in self._of_layer]
        return self._pieces[layer]


def pieces_of(shape: KVShape, spans: Spans) -> list[Spans]:
    """The spans of one layer in pieces of `PIECE_TOKENS`, as many together as one kernel call takes."""
    pieces = spans if (spans[:, attention.TOKENS] <= PIECE_TOKENS).all() else _pieces(spans)
    chunk = attention.BLOCK * attention.CHUNK_BLOCKS
    chunks = -(-(pieces[:, attention.VISIBLE] + pieces[:, attention.TOKENS] - 1) // chunk)
    rows = pieces[:, attention.TOKENS] * pieces[:, attention.HEADS] * (shape.n_heads // shape.n_kv_heads)
    floats = np.cumsum(chunks * rows * shape.head_dim)
    groups, start, taken = [], 0, 0
    while start < len(pieces):
        stop = max(start + 1, int(np.searchsorted(floats, taken + GROUP_FLOATS, side="right")))
        groups.append(pieces[start:stop])
        start, taken = stop, int(floats[stop - 1])
    return groups


def _pieces(spans: Spans) -> Spans:
    """The spans cut into pieces of at most `PIECE_TOKENS` rows."""
    counts = -(-spans[:, attention.TOKENS] // PIECE_TOKENS)
    pieces = np.repeat(spans, counts, axis=0)
    done = PIECE_TOKENS * (np.arange(len(pieces)) - np.repeat(np.cumsum(counts) - counts, counts))
    for field in (attention.ROW, attention.VISIBLE):
        pieces[:, field] += done
    pieces[:, attention.TOKENS] = np.minimum(PIECE_TOKENS, pieces[:, attention.TOKENS] - done)
    return pieces


def join_pages(parts: Sequence[tuple[KVCache, int]]) -> PageBatch | None:
    """Caches of exact pages for one pass; None if one of them has none, or some are ragged and others not."""
    requests = [cache.page_rows(rows) if isinstance(cache, PagedCache) else None for cache, rows in parts]
    ready = [request for request in requests if request is not None]
    if len(ready) < len(parts) or len({request.layers is None for request in ready}) > 1:
        return None
    return PageBatch(parts[0][0].shape, ready)


def attend_view(view: PageView, shape: KVShape, q: Tensor, first_visible: int) -> Tensor:
    """Attention of q: [n, H, D] over one request's pages, token i over entries 0 .. first_visible + i - 1.

    Raises IndexError if the view has not as many entries.
    """
    heads, n = shape.n_kv_heads, q.shape[0]
    last, held = first_visible + n - 2, len(view.table) * attention.BLOCK
    if last >= held:
        raise IndexError(f"entry {last} of a store that holds {held}")
    table = view.table[: last // attention.BLOCK + 1]
    span = np.array([[0, n, 0, heads, first_visible, 0, view.keys_at, view.values_at]], np.int64)
    out = torch.empty((n, heads, shape.n_heads // heads, shape.head_dim))
    width, workers = -(-shape.head_dim // LANES) * LANES, numba.get_num_threads()
    for spans in pieces_of(shape, span):
        attention.attend_pages(workers, c_array(q), spans, table, 0, view.head_bytes, width, out.numpy())
    return out.view(q.shape)
