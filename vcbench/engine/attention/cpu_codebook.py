"""Several caches of codebook codes made ready for one kernel call a layer on CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vcbench.engine.attention.cpu_exact import PageBatch
from vcbench.engine.attention.cpu_prerope import PreRopeBatch, PreRopeCoding, key_coding
from vcbench.engine.codes.codebook_cache import CodebookCache
from vcbench.engine.codes.frames import Frame
from vcbench.engine.kernels.cpu.codes import coded_attention as coded
from vcbench.engine.kernels.cpu.codes.coded_blocks import ValueCoding
from vcbench.engine.kernels.cpu.codes.exceptions import EXCEPTION_FIELDS, K_OUTLIERS, V_OUTLIERS
from vcbench.engine.kernels.cpu.codes.products import products_of
from vcbench.engine.kernels.cpu.exact.attention import BLOCK, VISIBLE
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.kv.shape import Spans


def join_codebook(parts: Sequence[tuple[KVCache, int]]) -> PreRopeBatch | None:
    """Codebook caches of the same books and rotary embedding for one pass; each may have key ranges, outliers and first
    tokens its own. None if there are others.
    """
    first = parts[0][0]
    alike = [(cache, n) for cache, n in parts if isinstance(cache, CodebookCache) and _reads_as(cache, first)]
    if len(alike) < len(parts):
        return None
    for cache, rows in alike:
        cache.tail.reserve(cache.tokens - cache.done + rows)
    return codebook_batch(alike)


def _reads_as(cache: CodebookCache, other: KVCache) -> bool:
    if not isinstance(other, CodebookCache):
        return False
    paged = isinstance(cache.tail, PagedStore) and isinstance(other.tail, PagedStore)
    return paged and cache.rope is other.rope and cache.books.same_as(other.books)


def codebook_batch(parts: Sequence[tuple[CodebookCache, int]]) -> PreRopeBatch:
    """Caches with the same books and rotary embedding, with their rows."""
    first = parts[0][0]
    shape, books = first.shape, first.books
    (form, key_levels), (_, value_levels) = books.kernel_levels("keys"), books.kernel_levels("values")
    positions = max(cache.tokens + rows for cache, rows in parts)
    keys = key_coding(first.rope, positions, form, key_levels[0], size=shape.head_dim)
    values = ValueCoding(
        form=form, products=products_of(form, first.width).address, group=first.width, groups=1, scaled=True,
        centred=True, unit=np.float32(1), levels=value_levels[0],
    )  # fmt: skip
    coding = PreRopeCoding(
        keys=lambda layer: keys._replace(levels=key_levels[layer]),
        values=lambda layer: values._replace(levels=value_levels[layer]),
        frame=Frame(),
    )
    tails = PageBatch(shape, [cache.page_tail().rows(cache.tokens - cache.done, rows) for cache, rows in parts])
    exceptions = np.zeros((shape.n_layers, len(parts), EXCEPTION_FIELDS), np.int64)
    for index, (cache, _) in enumerate(parts):
        exceptions[:, index, :K_OUTLIERS] = cache.first.addresses()
        exceptions[:, index, K_OUTLIERS:V_OUTLIERS] = cache.k_outliers.addresses()
        exceptions[:, index, V_OUTLIERS:] = cache.v_outliers.addresses()
    return PreRopeBatch(shape, coding, tails, _spans(parts, tails.spans), exceptions)


def _spans(parts: Sequence[tuple[CodebookCache, int]], tails: Spans) -> Spans:
    """The tails' spans, which see tokens instead of entries, and where the codes are: [S, CODED_FIELDS]."""
    spans = np.zeros((len(parts), coded.CODED_FIELDS), np.int64)
    spans[:, : tails.shape[1]] = tails
    for span, (cache, _) in zip(spans, parts, strict=True):
        span[VISIBLE] = cache.tokens + 1
        span[coded.FIRST_BLOCK] = cache.done // BLOCK
        span[coded.KEYS_DONE] = span[coded.VALUES_DONE] = cache.done
        for field, tensor, by_head in (
            (coded.K_CODES, cache.k_codes, True), (coded.K_STEPS, cache.k_ranges, True),
            (coded.K_MINIMA, cache.k_offsets, True), (coded.V_CODES, cache.v_codes, True),
            (coded.V_STEPS, cache.v_ranges, False), (coded.V_MINIMA, cache.v_offsets, False),
        ):  # fmt: skip
            if tensor.numel():
                size = tensor.element_size()
                span[field : field + 2] = tensor.data_ptr(), size * tensor.stride(0)
                span[field + 2] = size * tensor.stride(1) * by_head
    return spans
