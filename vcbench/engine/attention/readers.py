"""Which kernel reads which cache: decided here alone, by the cache's class and the device.

A cache whose class brings an `attend` of its own, as a plug-in's may, is read by that.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from vcbench.engine.attention import cpu_exact, torch_exact
from vcbench.engine.attention.cpu_codebook import join_codebook
from vcbench.engine.attention.cpu_codes import CodeBatch, alike
from vcbench.engine.attention.cpu_exact import join_pages
from vcbench.engine.attention.cpu_prerope import grouped_batch
from vcbench.engine.attention.cpu_tiled import attend_tiled
from vcbench.engine.attention.joined import Join, Joined, Parts
from vcbench.engine.codes.codebook_cache import CodebookCache
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.kv.cache import EntryCache, KVCache, PagedCache
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.kv.ragged import RaggedCache
from vcbench.engine.kv.store import ExactStore, PageView

EntryT = TypeVar("EntryT")


def join(parts: Parts) -> Joined | None:
    """Caches made ready for one pass of one kernel call a layer; None if they cannot be."""
    if any(_reads_itself(held) for held, _ in parts):
        return None
    first = parts[0][0]
    found = _of_class(_triton_joins() if on_gpu(first.shape.device) else CPU_JOINS, first)
    return None if found is None else found(parts)


def attend(held: KVCache, layer: int, q: Tensor) -> Tensor:
    """Attention of q: [n, H, D], the cache's tokens just written, each over all entries up to its own."""
    found = None if _reads_itself(held) else _of_class(ALONE, held)
    return held.attend(layer, q) if found is None else found(held, layer, q)


def attend_entries(store: ExactStore, layer: int, q: Tensor, first_visible: int) -> Tensor:
    """Attention of q: [n, H, D] over a store, token i over entries 0 .. first_visible + i - 1; returns [n, H, D]."""
    view = store.view(layer)
    if isinstance(view, PageView):
        return cpu_exact.attend_view(view, store.shape, q, first_visible)
    return torch_exact.attend_view(view, store.shape, q, first_visible)


def _reads_itself(held: KVCache) -> bool:
    return type(held).attend is not KVCache.attend


def on_gpu(device: torch.device) -> bool:
    """Whether the Triton form of the kernels is used; torch brings Triton along wherever it brings CUDA on Linux."""
    return device.type == "cuda" and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _of_class(table: Mapping[type[Any], EntryT], held: KVCache) -> EntryT | None:
    """What a table has for the cache's class or the nearest class that it is made from."""
    return next((table[base] for base in type(held).__mro__ if base in table), None)


def _join_quantised(parts: Parts) -> Joined | None:
    caches = alike(parts)
    if caches is None:
        return None
    return CodeBatch(caches) if caches[0][0].frame.plain else grouped_batch(caches)


CPU_JOINS: Mapping[type[Any], Join] = {
    PagedCache: join_pages,
    QuantisedCache: _join_quantised,
    CodebookCache: join_codebook,
}


@cache
def _triton_joins() -> Mapping[type[Any], Join]:
    from vcbench.engine.attention import gpu_codebook, gpu_codes, gpu_exact

    return {
        PagedCache: gpu_exact.join_exact,
        QuantisedCache: gpu_codes.join_codes,
        CodebookCache: gpu_codebook.join_codebook,
    }


def _attend_entry_cache(held: EntryCache, layer: int, q: Tensor) -> Tensor:
    return attend_entries(held.store, layer, q, held.entries() + 1)


def _attend_ragged(held: RaggedCache, layer: int, q: Tensor) -> Tensor:
    since = held.tokens - held.prompt
    mixed = [attend_entries(part.store, 0, q[:, part.heads], part.kept + since + 1) for part in held.layers[layer]]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)


def _attend_quantised(held: QuantisedCache, layer: int, q: Tensor) -> Tensor:
    joined = join([(held, q.shape[0])])
    if joined is not None:
        return joined.attend(layer, q)
    rotated = held.frame.rotated(q, "keys")
    if isinstance(held.tail, PagedStore):
        mixed = attend_tiled(held, held.tail, layer, rotated)
    else:
        mixed = torch_exact.attend_decoded(held.shape, rotated, held.tokens, lambda *span: held.dense(layer, *span))
    return held.frame.rotated_back(mixed, "values")


def _attend_codebook(held: CodebookCache, layer: int, q: Tensor) -> Tensor:
    joined = join([(held, q.shape[0])])
    if joined is not None:
        return joined.attend(layer, q)
    return torch_exact.attend_decoded(held.shape, q, held.tokens, lambda *span: held.dense(layer, *span))


ALONE: Mapping[type[Any], Callable[[Any, int, Tensor], Tensor]] = {
    EntryCache: _attend_entry_cache,
    RaggedCache: _attend_ragged,
    QuantisedCache: _attend_quantised,
    CodebookCache: _attend_codebook,
}
