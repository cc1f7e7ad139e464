"""Draft caches on a GPU made ready for one pass: a ragged batch is one launch a layer, and a join of its parts.

The full cache is not among them: verification stays in torch operations of fixed shapes (`stores.TensorStore`), and so
does any cache that holds every token exactly, whose drafts have to be full KV's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vcbench.engine.codes.frames import Frame
from vcbench.engine.kernels.triton import parts as fields
from vcbench.engine.kernels.triton.exact import attend_exact
from vcbench.engine.kernels.triton.parts import Launch, split_tokens, write_rows
from vcbench.engine.kv.cache import EntryCache, FullCache, Joined, KVCache
from vcbench.engine.kv.ragged import RaggedCache
from vcbench.engine.kv.stores import ExactStore, KVShape, Spans, TensorStore

ALIGNMENT = 16
"""Bytes that one thread loads at once at most."""


class TensorBatch(Joined):
    """Caches whose new tokens go to exact tails; valid while none of them commits or grows."""

    def __init__(self, shape: KVShape, spans: Spans, frame: Frame, together: int = 1) -> None:
        """spans: [L, S, fields]; see `kernels.triton.parts`. together: KV heads that are met together."""
        self._shape, self._frame = shape, frame
        on_device = torch.from_numpy(spans).to(shape.device)
        group = shape.n_heads // shape.n_kv_heads
        self._launches = [Launch(*layer, group, together) for layer in zip(spans, on_device, strict=True)]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        write_rows(self._launches[layer], self._frame.turned(k, "keys"), self._frame.turned(v, "values"))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        mixed = self._attend_turned(layer, self._launches[layer], self._frame.turned(q, "keys"))
        return self._frame.turned_back(mixed, "values")

    @abstractmethod
    def _attend_turned(self, layer: int, launch: Launch, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D] in the coordinates in which entries are stored."""


class ExactBatch(TensorBatch):
    """Kept entries."""

    def _attend_turned(self, layer: int, launch: Launch, q: Tensor) -> Tensor:
        return attend_exact(launch, q)


def join_exact(parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
    """Caches of kept entries for one pass; None if one of them is none or holds every token."""
    shape, row, spans = parts[0][0].shape, 0, []
    for cache, rows in parts:
        if isinstance(cache, RaggedCache):
            spans.append(_ragged_spans(cache, row, rows))
        elif isinstance(cache, EntryCache) and not isinstance(cache, FullCache):
            line = span_of(shape, row, rows, cache.entries(), cache.entries() - cache.tokens + cache.committed)
            put_tail(line, cache.store, cache.entries() + rows, 0)
            spans.append(line)
        else:
            return None
        if _holds_all(cache):
            return None
        row += rows
    return ExactBatch(shape, np.concatenate(spans, axis=1), Frame())


def _holds_all(cache: KVCache) -> bool:
    if isinstance(cache, RaggedCache):
        return all(part.kept >= cache.prompt for layer in cache.layers for part in layer)
    return isinstance(cache, EntryCache) and cache.entries() >= cache.tokens


def span_of(shape: KVShape, row: int, rows: int, held: int, committed: int, own: int = 0) -> Spans:
    """One request's span in every layer, [L, 1, fields], `own` of them the kernel's own, without the exact tail.

    held: positions or entries before the first row; committed: of these, the committed ones.
    """
    line = np.zeros((shape.n_layers, 1, fields.COMMON + own), np.int64)
    for field, value in (
        (fields.FIRST_ROW, row), (fields.TOKENS, rows), (fields.HEADS, shape.n_kv_heads), (fields.VISIBLE, held + 1),
        (fields.SPLIT, split_tokens(committed)),
    ):  # fmt: skip
        line[..., field.value] = value
    return line


def put_tail(line: Spans, store: ExactStore, entries: int, start: int) -> None:
    """Where the exact tail lies, once it has room for so many entries; entry 0 is position `start`."""
    assert isinstance(store, TensorStore)
    store.reserve(entries)
    keys, values = store.tensors()
    line[..., fields.TAIL_START.value] = start
    put_tensor(line, fields.VALUES.value, values, aligned=True)
    put_tensor(line, fields.KEYS.value, keys, strided=False, aligned=True)


def put_tensor(line: Spans, field: int, x: Tensor, *, strided: bool = True, aligned: bool = False) -> None:
    """Addresses of x: [L, heads, ...] in each layer, and the elements from head to head in the field that follows.

    aligned: the kernel takes each head to begin at a multiple of 16 bytes.
    """
    if aligned and (x.data_ptr() % ALIGNMENT or any(x.stride(i) * x.element_size() % ALIGNMENT for i in (0, 1))):
        raise ValueError(f"a tensor of strides {x.stride()} at {x.data_ptr():#x} is not aligned to {ALIGNMENT} bytes")
    if x.numel():
        line[..., field] = (x.data_ptr() + np.arange(len(x)) * x.stride(0) * x.element_size())[:, None]
    if strided:
        line[..., field + 1] = x.stride(1)


def _ragged_spans(cache: RaggedCache, row: int, rows: int) -> Spans:
    """A span for each part of each layer; layers of fewer parts are filled up with spans of no row."""
    most, since = max(map(len, cache.layers)), cache.tokens - cache.prompt
    spans = np.zeros((len(cache.layers), most, fields.COMMON), np.int64)
    spans[..., fields.SPLIT.value] = 1
    for layer, held in enumerate(cache.layers):
        for index, part in enumerate(held):
            entries = part.kept + since
            line = span_of(part.store.shape, row, rows, entries, entries - cache.tokens + cache.committed)
            put_tail(line, part.store, entries + rows, 0)
            line[..., fields.FIRST_HEAD.value] = part.kv_heads.start
            spans[layer, index] = line[0, 0]
    return spans
