"""Caches of packed codes on a GPU made ready for one pass; see `gpu_exact`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vcbench.engine.attention.gpu_exact import TensorBatch, put_tail, put_tensor, span_of
from vcbench.engine.codes.frames import GroupedHeads, Kind, blocked, product
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.rotation import hadamard
from vcbench.engine.codes.sketch import SketchedCache
from vcbench.engine.kernels.triton import codes as kernel
from vcbench.engine.kernels.triton import rotatekv as triton_rotated
from vcbench.engine.kernels.triton.codes import Coding, attend_codes
from vcbench.engine.kernels.triton.parts import Launch
from vcbench.engine.kernels.triton.rotatekv import attend_rotated
from vcbench.engine.kv.cache import Joined, KVCache
from vcbench.engine.kv.stores import Spans

MOST_TOGETHER = 16
"""Heads of one transform that a kernel takes."""


class GpuCodes(TensorBatch):
    """Caches of one scheme, coder and frame."""

    def __init__(self, parts: Sequence[tuple[QuantisedCache, int]]) -> None:
        first = parts[0][0]
        super().__init__(first.shape, code_spans(parts), first.frame)
        self._keys, self._values = coding(first, "keys"), coding(first, "values")
        self._exact = any(len(cache.exact) for cache, _ in parts)
        self._sketch = blocked(first.coder.sketch.back.mT) if isinstance(first, SketchedCache) else None

    def _attend_turned(self, layer: int, launch: Launch, q: Tensor) -> Tensor:
        projected = None if self._sketch is None else product(q, self._sketch)
        return attend_codes(launch, q, self._keys, self._values, exact=self._exact, projected=projected)


class GpuRotated(TensorBatch):
    """Caches of one scheme whose keys are groups of pre-RoPE heads, each with an order of channels of its own."""

    def __init__(self, parts: Sequence[tuple[QuantisedCache, int]], frame: GroupedHeads) -> None:
        first = parts[0][0]
        super().__init__(first.shape, rotated_spans(parts), frame, frame.together)
        self._keys, self._values = coding(first, "keys"), coding(first, "values")
        self._exact = any(len(cache.exact) for cache, _ in parts)
        half = first.shape.head_dim // 2
        self._hadamard = (hadamard(half) * half**0.5).round().to(first.shape.dtype).to(first.shape.device)

    def _attend_turned(self, layer: int, launch: Launch, q: Tensor) -> Tensor:
        return attend_rotated(launch, q, self._hadamard, self._keys, self._values, exact=self._exact)


def join_codes(parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
    """Quantised caches that are alike, for one pass; None if there are others, or codes that no kernel reads."""
    alike = [(cache, rows) for cache, rows in parts if isinstance(cache, QuantisedCache)]
    first = alike[0][0] if alike else None
    if first is None or len(alike) < len(parts) or not all(_as(cache, first) for cache, _ in alike):
        return None
    if isinstance(first.frame, GroupedHeads):
        large = first.shape.head_dim >= triton_rotated.LEAST_HEAD and first.frame.together <= MOST_TOGETHER
        return GpuRotated(alike, first.frame) if large else None
    return GpuCodes(alike)


def _as(cache: QuantisedCache, other: QuantisedCache) -> bool:
    same = type(cache) is type(other) and cache.scheme == other.scheme and cache.coder.same_as(other.coder)
    if isinstance(cache.frame, GroupedHeads) and isinstance(other.frame, GroupedHeads):
        return same and cache.frame.together == other.frame.together
    return same and cache.frame.same_as(other.frame)


def coding(cache: QuantisedCache, kind: Kind) -> Coding:
    """How the cache's codes of one kind are read."""
    s, keys = cache.scheme, kind == "keys"
    return Coding(
        bits=s.key_bits if keys else s.value_bits,
        group=s.key_group if keys else s.value_group,
        line_bytes=(cache.k_codes if keys else cache.v_codes).shape[-1],
        levels=cache.coder.levels(kind),
        scaled=cache.coder.scaled,
        symmetric=s.symmetric,
        by_channel=keys and s.key_axis == "channel",
    )


def rotated_spans(parts: Sequence[tuple[QuantisedCache, int]]) -> Spans:
    """As `code_spans`, and where each cache's order and rotary tables are."""
    spans = code_spans(parts, triton_rotated.OWN)
    for cache, _ in parts:  # before any address is taken: caches may share a table, and one that grows moves
        assert isinstance(cache.frame, GroupedHeads)
        cache.frame.rope.blocks.by_position(cache.tokens)
    for index, (cache, _) in enumerate(parts):
        assert isinstance(cache.frame, GroupedHeads)
        for layer in range(cache.shape.n_layers):
            spans[layer, index, triton_rotated.ORIGIN.value] = cache.frame.origin[layer].data_ptr()
        for field, x in zip(
            (triton_rotated.COS, triton_rotated.SIN), cache.frame.rope.blocks.by_position(cache.tokens), strict=True
        ):
            spans[:, index, field.value] = x.data_ptr()
    return spans


def code_spans(parts: Sequence[tuple[QuantisedCache, int]], own: int = kernel.OWN) -> Spans:
    """A span of each request in every layer: [L, S, fields], `own` of them beside the common ones."""
    spans, row = [], 0
    for cache, rows in parts:
        line = span_of(cache.shape, row, rows, cache.tokens, cache.committed, own)
        put_tail(line, cache.tail, cache.tokens - cache.tail_start + rows, cache.tail_start)
        line[..., kernel.KEYS_DONE.value] = cache.keys_done
        line[..., kernel.VALUES_DONE.value] = cache.values_done
        for field, tensor in (
            (kernel.K_CODES, cache.k_codes), (kernel.K_STEPS, cache.k_steps), (kernel.K_MINIMA, cache.k_minima),
            (kernel.V_CODES, cache.v_codes), (kernel.V_STEPS, cache.v_steps), (kernel.V_MINIMA, cache.v_minima),
        ):  # fmt: skip
            put_tensor(line, field.value, tensor, aligned=tensor.dtype == torch.uint8)
        if isinstance(cache, SketchedCache):
            put_tensor(line, kernel.K_SIGNS.value, cache.k_signs, aligned=True)
            put_tensor(line, kernel.K_NORMS.value, cache.k_norms)
        for layer in range(cache.shape.n_layers if len(cache.exact) else 0):
            positions, k, v = cache.exact.of_layer(layer)
            line[layer, 0, kernel.EXACT.value] = len(positions)
            for field, exact in ((kernel.EXACT_AT, positions), (kernel.EXACT_KEYS, k), (kernel.EXACT_VALUES, v)):
                line[layer, 0, field.value] = exact.data_ptr()
        spans.append(line)
        row += rows
    return np.concatenate(spans, axis=1)
