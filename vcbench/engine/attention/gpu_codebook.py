"""Caches of codebook codes on a GPU made ready for one pass; see `gpu_exact`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vcbench.engine.attention.gpu_exact import TensorBatch, put_tail, put_tensor, span_of
from vcbench.engine.codes.codebook_cache import NonuniformCache
from vcbench.engine.codes.frames import Frame
from vcbench.engine.kernels.triton import codebook as kernel
from vcbench.engine.kernels.triton.codebook import attend_nonuniform
from vcbench.engine.kernels.triton.parts import Launch
from vcbench.engine.kv.cache import Joined, KVCache
from vcbench.engine.kv.stores import Spans


class GpuNonuniform(TensorBatch):
    """Caches of equally wide codes; each has codebooks of its own."""

    def __init__(self, parts: Sequence[tuple[NonuniformCache, int]]) -> None:
        first = parts[0][0]
        super().__init__(first.shape, nonuniform_spans(parts), Frame())
        self._bits, self._value_bytes = first.books.bits, first.v_codes.shape[-1]
        self._sparse = any(len(cache.k_outliers) or len(cache.v_outliers) for cache, _ in parts)

    def _attend_turned(self, layer: int, launch: Launch, q: Tensor) -> Tensor:
        return attend_nonuniform(launch, q, bits=self._bits, value_bytes=self._value_bytes, sparse=self._sparse)


def join_nonuniform(parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
    """Caches of equally wide codes for one pass; None if there are others."""
    alike = [(cache, rows) for cache, rows in parts if isinstance(cache, NonuniformCache)]
    if len(alike) < len(parts) or len({cache.books.bits for cache, _ in alike}) > 1:
        return None
    return GpuNonuniform(alike)


def nonuniform_spans(parts: Sequence[tuple[NonuniformCache, int]]) -> Spans:
    """A span of each request in every layer: [L, S, fields]."""
    spans, row = [], 0
    for cache, _ in parts:  # before any address is taken: caches may share a table, and one that grows moves
        cache.rope.blocks.by_position(cache.done)
    for cache, rows in parts:
        line = span_of(cache.shape, row, rows, cache.tokens, cache.committed, kernel.OWN)
        put_tail(line, cache.tail, cache.tokens - cache.done + rows, cache.done)
        line[..., kernel.DONE.value] = cache.done
        for field, x in zip((kernel.FIRST, kernel.FIRST_KEYS, kernel.FIRST_VALUES), (0, 2, 3), strict=True):
            line[..., field.value] = cache.first.addresses()[:, x, None]
        for field in (kernel.FIRST_KEYS, kernel.FIRST_VALUES):
            line[..., field.value + 1] = line[..., kernel.FIRST.value] * cache.shape.head_dim
        for field, table in zip((kernel.COS, kernel.SIN), cache.rope.blocks.by_position(cache.done), strict=True):
            line[..., field.value] = table.data_ptr()
        put_tensor(line, kernel.K_CODES.value, cache.k_codes, aligned=True)
        put_tensor(line, kernel.V_CODES.value, cache.v_codes, aligned=True)
        for field, tensor in (
            (kernel.K_LEVELS, cache.books.decoded["keys"]), (kernel.V_LEVELS, cache.books.decoded["values"]),
            (kernel.V_OFFSETS, cache.v_offsets), (kernel.V_RANGES, cache.v_ranges),
        ):  # fmt: skip
            put_tensor(line, field.value, tensor, strided=False)
        if cache.k_ranges.numel():
            put_tensor(line, kernel.K_OFFSETS.value, cache.k_offsets)
            put_tensor(line, kernel.K_RANGES.value, cache.k_ranges)
        for field, outliers in ((kernel.K_TILES, cache.k_outliers), (kernel.V_TILES, cache.v_outliers)):
            for layer in range(cache.shape.n_layers if len(outliers) else 0):
                numbers, places, starts = outliers.of_layer(layer)
                found = len(starts) - 1, numbers.data_ptr(), places.data_ptr(), starts.data_ptr()
                line[layer, 0, field.value : field.value + 4] = found
        spans.append(line)
        row += rows
    return np.concatenate(spans, axis=1)
