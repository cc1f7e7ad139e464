"""Exact storage of keys and values, in the precision of the model: pages on CPU, plain tensors elsewhere.

A store knows entries 0, 1, 2, ... and nothing of positions: a cache decides which token an entry holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcbench.engine.kernels.cpu.exact import attention, pages
from vcbench.engine.kernels.cpu.simd import LANES

Spans = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What every cache of a model has in common. L layers, Hk KV heads, D head size, H query heads."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * self.dtype.itemsize


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
    def attend(self, layer: int, q: Tensor, first_visible: int) -> Tensor:
        """Attention of q: [n, H, D], token i over entries 0 .. first_visible + i - 1; returns [n, H, D]."""

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


def make_store(shape: KVShape) -> ExactStore:
    """The store for a model's device and precision."""
    if shape.device.type == "cpu" and shape.dtype == torch.float32:
        return PagedStore(shape)
    return TensorStore(shape)


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
        pages.write_entries(self._table, keys_at, values_at, self._head_bytes, self.width, start, _array(k), _array(v))

    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        self.check(int(entries.max()) + 1 if entries.numel() else 0)
        keys_at, values_at = self._offsets(layer)
        k = torch.empty((*entries.shape, self.shape.head_dim))
        v = torch.empty_like(k)
        pages.read_entries(
            self._table, keys_at, values_at, self._head_bytes, self.width, _array(entries), k.numpy(), v.numpy()
        )
        return k, v

    def attend(self, layer: int, q: Tensor, first_visible: int) -> Tensor:
        return PageBatch(self.shape, [self.rows(first_visible - 1, q.shape[0])]).attend(layer, q)

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


PIECE_TOKENS = 32
"""Tokens of one request that a kernel task takes at a time, so that their state stays in the nearest caches."""

GROUP_FLOATS = 1 << 22
"""Bound on the partial results of one kernel call, in float32 elements: 16 MiB."""


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
        pages.write_rows(_array(k), _array(v), spans, self.tables, shift, self.head_bytes, self._width)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D]; returns [n, H, D]."""
        heads = self._shape.n_kv_heads
        out = torch.empty((q.shape[0], heads, self._shape.n_heads // heads, self._shape.head_dim))
        shift, rows, target, workers = self.layer_bytes(layer), _array(q), out.numpy(), numba.get_num_threads()
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


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor as a C-contiguous numpy array, sharing memory where it can."""
    return tensor.contiguous().numpy()


class TensorStore(ExactStore):
    """Any device and precision, in torch operations. Keys and values: [L, Hk, capacity, D].

    Attention takes key chunks of one fixed size counted from entry 0 and query tiles of one fixed size, so that every
    product has the same shape whatever the call, and combines chunks in ascending order in float32.
    """

    CHUNK = 256
    ROW_TILE = 64

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

    def entries(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values with all room for more: [Hk, capacity, D]; valid until the store next changes."""
        return self._k[layer], self._v[layer]

    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        index = entries.unsqueeze(-1).expand(-1, -1, self.shape.head_dim)
        return self._k[layer].gather(1, index), self._v[layer].gather(1, index)

    def attend(self, layer: int, q: Tensor, first_visible: int) -> Tensor:
        n = q.shape[0]
        chunks = -(-(first_visible + n - 1) // self.CHUNK)

        def chunk(index: int) -> tuple[Tensor, Tensor]:
            span = slice(index * self.CHUNK, (index + 1) * self.CHUNK)
            return self._k[layer, :, span], self._v[layer, :, span]

        return attend_chunks(q, self.shape, first_visible, chunks, chunk, self.CHUNK, self.ROW_TILE)

    def drop_front(self, entries: int) -> None:
        self._k, self._v = self._k[:, :, entries:].clone(), self._v[:, :, entries:].clone()

    def tensors(self) -> list[Tensor]:
        return [self._k, self._v]


def attend_chunks(
    q: Tensor, shape: KVShape, first_visible: int, chunks: int, chunk: Any, size: int, tile: int
) -> Tensor:
    """Attention over `chunks` pieces of `size` entries, each given by `chunk(i)` as k, v: [Hk, size, D].

    q: [n, H, D]; token i sees entries 0 .. first_visible + i - 1, and the others cannot reach it.
    Every product is [Hk, tile, D] x [Hk, D, size]. Returns [n, H, D] in q's dtype; scores and sums are float32.
    """
    n, heads, depth = q.shape
    group = heads // shape.n_kv_heads
    rows = q.view(n, shape.n_kv_heads, group, depth).permute(1, 0, 2, 3).reshape(shape.n_kv_heads, n * group, depth)
    visible = first_visible + torch.arange(n, device=q.device).repeat_interleave(group)
    outputs = []
    for start in range(0, n * group, tile):
        part = rows[:, start : start + tile]
        limit = visible[start : start + tile]
        missing = tile - part.shape[1]
        if missing:
            part = torch.nn.functional.pad(part, (0, 0, 0, missing))
            limit = torch.nn.functional.pad(limit, (0, missing), value=1)
        outputs.append(_attend_tile(part, limit, chunks, chunk, size)[:, : tile - missing])
    out = torch.cat(outputs, dim=1).view(shape.n_kv_heads, n, group, depth)
    return out.permute(1, 0, 2, 3).reshape(n, heads, depth).to(q.dtype)


def _attend_tile(rows: Tensor, limit: Tensor, chunks: int, chunk: Any, size: int) -> Tensor:
    """Online softmax of one row tile: rows [Hk, tile, D], limit [tile]; returns [Hk, tile, D] float32.

    A weight of 0 does not keep a NaN away, so values that are not finite leave the product and mark the rows that see
    them.
    """
    scale = rows.shape[-1] ** -0.5
    highest = torch.full((*rows.shape[:2], 1), -3.0e38, device=rows.device)
    total = torch.zeros_like(highest)
    acc = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
    for index in range(chunks):
        k, v = chunk(index)
        scores = torch.bmm(rows, k.transpose(1, 2)).float() * scale
        hidden = torch.arange(index * size, (index + 1) * size, device=rows.device) >= limit[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        peak = torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - peak)
        shrink = torch.exp(highest - peak)
        total = total * shrink + weights.sum(-1, keepdim=True)
        faulty = ~v.isfinite().all(-1)
        acc = acc * shrink + torch.bmm(weights.to(v.dtype), v.masked_fill(faulty[..., None], 0)).float()
        acc = acc.masked_fill((faulty[:, None] & ~hidden).any(-1, keepdim=True), float("nan"))
        highest = peak
    return acc / total
