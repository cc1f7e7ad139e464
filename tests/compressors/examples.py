"""Options under which each registered method compresses the short prompts of tests, and the states of its caches."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.compressors import tiny
from tests.engine.reference import attention
from vcbench.calibration.base import Calibration
from vcbench.calibration.store import make_calibration
from vcbench.compressors.base import Compressor
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.engine.rope import RopeTable
from vcbench.registry import lookup, names

SMALL: dict[str, list[dict[str, Any]]] = {
    "kvquant": [{"bits": 4}, {"bits": 2, "outliers": 0.0, "sinks": 0}, {"bits": 3, "codebook": "nf", "sinks": 5}],
    "kvzap": [
        {"factor": 3.0, "window": 8},
        {"budget_tokens": 24, "window": 0, "sinks": 0, "surrogate": "mlp", "targets": "kvzip+"},
    ],
    "kvzip": [{}, {"chunk": 40, "reads": "chunk", "weighted": True}],
    "kivi": [{"bits": 4, "residual": 32}, {"bits": 2, "residual": 64}],
    "snapkv": [{"factor": 3.0, "window": 8}, {"budget_tokens": 20, "window": 8, "kernel": 7, "pooling": "max"}],
    "rotatekv": [
        {},
        {"bits": 2, "permutation": "identity", "group": 32, "sinks": 3},
        {"bits": 3, "permutation": "identity", "group": 8, "sinks": 0},
    ],
    "turboquant": [{}, {"bits": "k3v4", "scale": "plain", "qjl": True}],
    "streamingllm": [{"factor": 3.0}, {"budget_tokens": 24, "sinks": 1}, {"factor": 3.0, "positions": "reindexed"}],
}
"""Where a method's defaults suit prompts of thousands of tokens; others are tried with their defaults."""

ARCHITECTURE = replace(tiny.ARCHITECTURE, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, max_context=1024)


def example_options(name: str) -> list[Any]:
    """Options to try a method with, at least one set."""
    options = lookup("compressor", name).Options
    return [options(**chosen) for chosen in SMALL.get(name, [{}])]


def every_method() -> dict[str, tuple[str, Any]]:
    """(name, options) of every registered method that runs on `ARCHITECTURE`, by a label for test ids."""
    found = {}
    for name in names("compressor"):
        for number, options in enumerate(example_options(name)):
            if lookup("compressor", name).unsupported(options, ARCHITECTURE) is None:
                found[f"{name}-{number}" if number else name] = (name, options)
    return found


def make(method: tuple[str, Any]) -> Compressor[Any]:
    """The method's compressor."""
    name, options = method
    given = () if lookup("compressor", name).calibration_need(options) is None else (calibration(method),)
    compressor: Compressor[Any] = lookup("compressor", name)(options, *given)
    return compressor


@cache
def calibration(method: tuple[str, Any]) -> Calibration:
    """What a method that needs one is given: a fit to the small model on random tokens."""
    name, options = method
    samples = [tiny.token_ids(200, seed=seed) for seed in range(100, 103)]
    fit = lookup("compressor", name).calibrate(options, decoder(), samples)
    return make_calibration(fit.tensors, {"method": name})


def decoder() -> Decoder:
    """The small model that all these methods run on."""
    return tiny.decoder(ARCHITECTURE)


def prefill(ids: list[int], compressor: Compressor[Any], *, chunk: int = 64) -> Prefill:
    """A snapshot with all that a method asks for."""
    return decoder().prefill(ids, chunk=chunk, query_window=compressor.query_window, statistics=compressor.statistics)


@cache
def snapshot(method: tuple[str, Any], tokens: int) -> Prefill:
    """A shared snapshot of a random prompt; whoever appends to its cache rewinds it."""
    return prefill(tiny.token_ids(tokens), make(method))


def entries(shape_of: KVCache, count: int, seed: int, heads: int | None = None) -> list[Tensor]:
    """Random vectors of `count` tokens for each layer, [n, heads, D]; the KV heads unless told otherwise."""
    shape = shape_of.shape
    generator = torch.Generator().manual_seed(seed)
    size = (shape.n_layers, count, heads or shape.n_kv_heads, shape.head_dim)
    return list(torch.randn(size, generator=generator).to(shape.dtype))


def append(cache: KVCache, count: int, seed: int) -> None:
    """Writes `count` uncommitted tokens of random entries."""
    keys, values = entries(cache, count, seed), entries(cache, count, seed + 1)
    for layer in range(cache.shape.n_layers):
        cache.write(layer, keys[layer], values[layer])
    cache.advance(count)


def attended(cache: KVCache, count: int = 2, seed: int = 77) -> Tensor:
    """What every layer's attention gives for `count` tokens to come, which are forgotten again."""
    keys, values = entries(cache, count, seed), entries(cache, count, seed + 1)
    queries = entries(cache, count, seed + 2, cache.shape.n_heads)
    rows = []
    for layer in range(cache.shape.n_layers):
        cache.write(layer, keys[layer], values[layer])
        rows.append(cache.attend(layer, queries[layer]))
    cache.roll_back()
    return torch.stack(rows)


def check_attention(cache: KVCache, *, rtol: float) -> None:
    """Asserts that attention of 3 tokens is that over `materialize`, to 1e-5 and `rtol`; position -1 is padding."""
    ours, s = attended(cache, 3), cache.shape
    group_size = s.n_heads // s.n_kv_heads
    for layer in range(s.n_layers):
        keys, values = (entries(cache, 3, seed)[layer] for seed in (77, 78))
        queries = entries(cache, 3, 79, s.n_heads)[layer]
        for head, (k, v, positions) in enumerate(zip(*cache.materialize(layer), strict=True)):
            real = positions >= 0
            k = torch.cat([k[real], keys[:, head]])[None]
            v = torch.cat([v[real], values[:, head]])[None]
            group = slice(head * group_size, (head + 1) * group_size)
            expected = attention(queries[:, group], k, v, int(real.sum()) + 1)
            torch.testing.assert_close(ours[layer][:, group].double(), expected, rtol=rtol, atol=1e-5)


def state(cache: KVCache) -> list[Any]:
    """Everything that a cache shows: counts, entries, positions, and what attention makes of them, as bytes."""
    shown = [x for layer in range(cache.shape.n_layers) for x in cache.materialize(layer)]
    if cache.tokens == cache.committed:
        shown.append(attended(cache))
    return [cache.tokens, cache.committed, *(as_bytes(x) for x in shown)]


def as_bytes(x: Tensor) -> tuple[tuple[int, ...], bytes]:
    """A tensor's shape and bits, to be compared without NaN or -0 getting in the way."""
    return tuple(x.shape), x.contiguous().view(torch.uint8).numpy().tobytes()


SKIPPED = (type, str, bytes, int, float, np.ndarray, torch.dtype, torch.device, RopeTable)


def reachable_tensors(root: Any) -> list[Tensor]:
    """Every tensor in the object graph below an object, each storage once.

    Classes and modules are not entered, nor is the decoder's rotary table, which it has whatever the cache.
    """
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, SKIPPED):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            found[item.untyped_storage().data_ptr()] = item
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting += item
        else:
            waiting += vars(item).values() if hasattr(item, "__dict__") else []
            slots = {slot for cls in type(item).__mro__ for slot in getattr(cls, "__slots__", ())}
            waiting += [getattr(item, slot) for slot in slots if hasattr(item, slot)]
    return list(found.values())


def held_bytes(cache: KVCache) -> int:
    """Bytes of every storage that a cache keeps alive, whether or not a tensor shows all of it."""
    return sum(tensor.untyped_storage().nbytes() for tensor in reachable_tensors(cache))


def full_copy(full: FullCache) -> FullCache:
    """A full cache of the same committed entries."""
    copy = FullCache(full.shape)
    copy.store.copy_from(full.store, 0, 0, full.committed)
    copy.tokens = copy.committed = full.committed
    return copy
