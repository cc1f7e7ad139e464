"""Several quantised caches made ready for one kernel call a layer on CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch
from torch import Tensor

from vcbench.engine.attention.cpu_exact import PageBatch, pieces_of
from vcbench.engine.codes.frames import Kind
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.sketch import SketchedCache
from vcbench.engine.kernels.cpu.codes import coded_attention as kernel
from vcbench.engine.kernels.cpu.codes import products as forms
from vcbench.engine.kernels.cpu.codes.coded_blocks import KeyCoding, ValueCoding
from vcbench.engine.kernels.cpu.exact import attention
from vcbench.engine.kernels.cpu.simd import LANES
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.kv.shape import Spans


class CodeBatch:
    """Caches of one scheme, coder and frame whose layers are codes and an exact tail, nothing else.

    Valid while none of them commits.
    """

    def __init__(self, parts: Sequence[tuple[QuantisedCache, int]]) -> None:
        """parts: each request's cache and number of rows; rows lie one request after the other."""
        first = parts[0][0]
        check_groups(first)
        self._shape, self._width = first.shape, first.width
        self._forth, self._back = (matrix.numpy() for matrix in first.frame.matrices())
        self._tails = PageBatch(first.shape, [tail_of(cache).rows(cache.tail_entry(), n) for cache, n in parts])
        self._pieces = pieces_of(first.shape, coded_spans(parts, self._tails.spans))
        self._workers = numba.get_num_threads()
        self._keys, self._values = tuple(key_coding(first)), tuple(value_coding(first))

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Stores k, v: [n, Hk, D] in the exact tails."""
        tails = self._tails
        kernel.write_rotated(
            k.contiguous().numpy(), v.contiguous().numpy(), self._forth, tails.spans, tails.tables,
            tails.layer_bytes(layer), tails.head_bytes, self._width,
        )  # fmt: skip

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D]; returns [n, H, D]."""
        (n, heads, size), kv_heads, tails = q.shape, self._shape.n_kv_heads, self._tails
        rows, out = q.contiguous().numpy(), np.empty((n, kv_heads, heads // kv_heads, size), np.float32)
        for spans in self._pieces:
            kernel.attend_codes(
                self._workers, rows, spans, tails.tables, layer, tails.layer_bytes(layer), tails.head_bytes,
                self._keys, self._values, self._forth, self._back, self._width, out,
            )  # fmt: skip
        return torch.from_numpy(out.reshape(n, heads, size))


def alike(parts: Sequence[tuple[KVCache, int]]) -> list[tuple[QuantisedCache, int]] | None:
    """Quantised caches on pages of one scheme, coder and frame, room made for their rows; None if there are others."""
    first = parts[0][0]
    same = [(cache, n) for cache, n in parts if isinstance(cache, QuantisedCache) and _reads_as(cache, first)]
    if len(same) < len(parts):
        return None
    for cache, rows in same:
        cache.tail.reserve(cache.tail_entry() + rows)
    return same


def _reads_as(cache: QuantisedCache, other: KVCache) -> bool:
    """Whether one kernel call can read both; not where this one is more than codes and exact pages."""
    if not isinstance(other, QuantisedCache) or not isinstance(cache.tail, PagedStore):
        return False
    alone = not cache.frame.plain or not (len(cache.exact) or isinstance(cache, SketchedCache))
    return (
        alone and cache.scheme == other.scheme and cache.coder.same_as(other.coder) and cache.frame.same_as(other.frame)
    )


def check_groups(cache: QuantisedCache) -> None:
    """Raises ValueError unless each vector of codes lies in one group."""
    s = cache.scheme
    whole = s.value_group == cache.shape.head_dim or s.value_group % LANES == 0
    if not whole or (s.key_axis == "channel" and s.key_group % LANES):
        raise ValueError(f"groups of {s.key_group} and {s.value_group}: give multiples of {LANES}, or a whole head")


def tail_of(cache: QuantisedCache) -> PagedStore:
    """The exact tail of a cache on CPU."""
    assert isinstance(cache.tail, PagedStore)
    return cache.tail


def coded_spans(parts: Sequence[tuple[QuantisedCache, int]], tails: Spans) -> Spans:
    """The tails' spans, which see tokens instead of entries, and where the codes are: [S, CODED_FIELDS]."""
    spans = np.zeros((len(parts), kernel.CODED_FIELDS), np.int64)
    spans[:, : tails.shape[1]] = tails
    for span, (cache, _) in zip(spans, parts, strict=True):
        span[attention.VISIBLE] = cache.tokens + 1
        span[kernel.FIRST_BLOCK] = cache.tail_start // attention.BLOCK
        span[kernel.KEYS_DONE], span[kernel.VALUES_DONE] = cache.keys_done, cache.values_done
        for field, tensor in (
            (kernel.K_CODES, cache.k_codes), (kernel.K_STEPS, cache.k_steps), (kernel.K_MINIMA, cache.k_minima),
            (kernel.V_CODES, cache.v_codes), (kernel.V_STEPS, cache.v_steps), (kernel.V_MINIMA, cache.v_minima),
        ):  # fmt: skip
            size = tensor.element_size()
            span[field : field + 3] = tensor.data_ptr(), size * tensor.stride(0), size * tensor.stride(1)
    return spans


def key_coding(cache: QuantisedCache) -> KeyCoding:
    """How a cache's keys are coded, for the kernel."""
    s = cache.scheme
    form, unit, levels = form_of(cache, "keys")
    return KeyCoding(
        form=form, products=forms.products_of(form, attention.BLOCK).address, by_channel=s.key_axis == "channel",
        group=s.key_group, scaled=cache.coder.scaled,
        centred=not s.symmetric, unit=np.float32(unit), levels=levels,
    )  # fmt: skip


def value_coding(cache: QuantisedCache) -> ValueCoding:
    """How a cache's values are coded, for the kernel."""
    s = cache.scheme
    form, unit, levels = form_of(cache, "values")
    return ValueCoding(
        form=form, products=forms.products_of(form, cache.width).address, group=s.value_group,
        groups=max(1, cache.v_steps.shape[3]), scaled=cache.coder.scaled,
        centred=not s.symmetric, unit=np.float32(unit), levels=levels,
    )  # fmt: skip


def form_of(cache: QuantisedCache, kind: Kind) -> tuple[int, float, Spans]:
    """A coder's form (see `cpu.codes.products`), what its level 1 stands for, and its levels, 16 or more of them."""
    bits = cache.scheme.key_bits if kind == "keys" else cache.scheme.value_bits
    levels = cache.coder.levels(kind).numpy()
    if cache.coder.float8_scale is not None:
        return forms.FLOAT8, cache.coder.float8_scale, levels
    if bits == 8:
        return (forms.TABLE8, 1.0, levels) if levels.size else (forms.SIGNED, 1.0, np.zeros(16, np.float32))
    if not levels.size:
        levels = np.arange(1 << bits, dtype=np.float32) - np.float32(1 << (bits - 1))
    return bits, 1.0, np.tile(levels, forms.TABLE >> bits)
