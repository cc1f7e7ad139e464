"""Draft caches of every kind as they are on a GPU, on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.engine.codes.test_quantised import full_cache, per_channel, per_token
from tests.engine.reference import draw, shape_of
from vcbench.engine.codes.codebook import Codebooks, normal_float
from vcbench.engine.codes.codebook_cache import NonuniformCache
from vcbench.engine.codes.coders import ClippedCoder, DirectionCoder, FP8Coder
from vcbench.engine.codes.frames import GroupedHeads, Turned
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.rotation import random_rotation
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.codes.sketch import SketchedCache, SketchingCoder
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.kept import KeptCache, WindowCache
from vcbench.engine.kv.ragged import RaggedCache
from vcbench.engine.kv.stores import KVShape, TensorStore
from vcbench.engine.rope import RopeTable
from vcbench.models.architecture import Rope

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Make = Callable[[FullCache], KVCache]


def as_on_gpu(patch: pytest.MonkeyPatch) -> None:
    """Caches made from here on are those of a GPU."""
    for module in ("kv.cache", "codes.quantised", "codes.codebook_cache", "kv.ragged"):
        patch.setattr(f"vcbench.engine.{module}.make_store", TensorStore)
    for module in ("kv.cache", "codes.quantised", "codes.codebook_cache"):
        patch.setattr(f"vcbench.engine.{module}.on_gpu", lambda device: True)


def shape(kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> KVShape:
    """Two layers, two query heads a KV head."""
    return replace(shape_of(heads=2 * kv_heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype), device=DEVICE)


def prompt(shape: KVShape, tokens: int) -> FullCache:
    """Always the same entries."""
    return full_cache(shape, tokens)


def write(cache: KVCache, rows: int, seed: int = 20) -> None:
    """New tokens of every layer, which do not count yet."""
    s = cache.shape
    for layer in range(s.n_layers):
        k, v = (draw(rows, s.n_kv_heads, s.head_dim, seed=seed + 2 * layer + i).to(s.device, s.dtype) for i in (0, 1))
        cache.write(layer, k, v)


def queries(shape: KVShape, rows: int, seed: int = 30) -> torch.Tensor:
    """Of new tokens: [rows, H, D]."""
    return draw(rows, shape.n_heads, shape.head_dim, seed=seed).to(shape.device, shape.dtype)


def quantised(scheme: Scheme) -> Make:
    """Uniform codes of the entries as they are."""
    return lambda full: QuantisedCache.of_prompt(full, scheme)


def fp8(full: FullCache) -> KVCache:
    """Codes without steps."""
    size = full.shape.head_dim
    scheme = Scheme.per_token(size, key_bits=8, value_bits=8, symmetric=True)
    return QuantisedCache.of_prompt(full, scheme, FP8Coder(0.05, DEVICE))


def directions(key_bits: int, value_bits: int) -> Make:
    """TurboQuant's."""

    def make(full: FullCache) -> KVCache:
        size = full.shape.head_dim
        scheme = Scheme.per_token(size, key_bits=key_bits, value_bits=value_bits, symmetric=True)
        frame = Turned(random_rotation("qr", size, 0).to(DEVICE))
        coder = DirectionCoder(key_bits, value_bits, "unbiased", size, DEVICE)
        return QuantisedCache.of_prompt(full, scheme, coder, frame)

    return make


def sketched(key_bits: int) -> Make:
    """TurboQuant's with a sketch of what the key codes miss."""

    def make(full: FullCache) -> KVCache:
        size = full.shape.head_dim
        scheme = Scheme.per_token(size, key_bits=key_bits, value_bits=4, symmetric=True)
        coder = SketchingCoder(key_bits, 4, "plain", size, DEVICE, 1)
        return SketchedCache.of_prompt(full, scheme, coder, Turned(random_rotation("qr", size, 0).to(DEVICE)))

    return make


def some_exact(full: FullCache) -> KVCache:
    """Uniform codes, in each layer other tokens exact beside them, more than are looked for at a time."""
    scheme = per_token(4, full.shape.head_dim, symmetric=False)
    exact = [torch.arange(layer, full.tokens, 7 + 20 * layer, device=DEVICE) for layer in range(full.shape.n_layers)]
    return QuantisedCache.of_prompt(full, scheme, exact=exact)


def rope(full: FullCache) -> RopeTable:
    """Rotary tables of a model."""
    return RopeTable(Rope(theta=1000.0), full.shape.head_dim, DEVICE)


def rotated(bits: int, together: int, group: int, sinks: int) -> Make:
    """RotateKV's, channels in a random order."""

    def make(full: FullCache) -> KVCache:
        s = full.shape
        channels = s.n_kv_heads * s.head_dim
        generator = torch.Generator().manual_seed(1)
        order = torch.stack([torch.randperm(channels, generator=generator) for _ in range(s.n_layers)])
        frame = GroupedHeads(rope(full), order.to(DEVICE), together=together, group=group)
        scheme = replace(per_token(bits, group, symmetric=False, value_group=min(group, s.head_dim)), key_flush=1)
        exact = [torch.tensor([0, 5, 70 + layer], device=DEVICE)[:sinks] for layer in range(s.n_layers)]
        exact = [positions[positions < full.tokens] for positions in exact]
        return QuantisedCache.of_prompt(full, scheme, ClippedCoder(bits, bits, 0.9), frame, exact if sinks else None)

    return make


def nonuniform(bits: int, outliers: float, sinks: int) -> Make:
    """KVQuant's with the NormalFloat codebook."""

    def make(full: FullCache) -> KVCache:
        levels = normal_float(bits).to(DEVICE).expand(full.shape.n_layers, -1).contiguous()
        tables = {"keys": levels, "values": levels}
        books = Codebooks(bits=bits, levels=tables, decoded=tables, offsets=None, ranges=None, outliers=outliers)
        return NonuniformCache.of_prompt(full, books, rope(full), sinks)

    return make


def kept(full: FullCache) -> KVCache:
    """Every third token, other ones in each head."""
    s, count = full.shape, full.tokens // 3
    steps = torch.arange(count, device=DEVICE) * 3
    return KeptCache.gather(
        full, steps + torch.arange(s.n_kv_heads, device=DEVICE)[:, None] + steps.new_zeros((s.n_layers, 1, 1))
    )


def window(full: FullCache) -> KVCache:
    """Two sinks and half of the prompt."""
    return WindowCache(full.shape, 2, full.tokens // 2).take_prompt(full)


def ragged(full: FullCache) -> KVCache:
    """Heads of layer 0 keep alike, those of layer 1 differently many tokens."""
    heads = full.shape.n_kv_heads
    first = torch.arange(0, full.tokens, 4, device=DEVICE)
    second = [torch.arange(head, full.tokens, 3 + 2 * head, device=DEVICE)[None] for head in range(heads)]
    return RaggedCache.gather(full, [[first.expand(heads, -1)], second])


KINDS: dict[str, tuple[int, int, Make]] = {
    "kivi-2": (2, 64, quantised(per_channel(2, 32, 64))),
    "kivi-4": (2, 64, quantised(per_channel(4, 32, 128))),
    "kivi-3": (1, 96, quantised(per_channel(3, 32, 32))),
    "kivi-4-groups": (1, 128, quantised(per_channel(4, 128, 128, value_group=32))),
    "int8": (1, 20, quantised(per_token(8, 20))),
    "int4": (2, 64, quantised(per_token(4, 64, symmetric=False))),
    "3-bits": (1, 80, quantised(per_token(3, 80, symmetric=False, value_group=16, residual=70))),
    "fp8": (1, 64, fp8),
    "turboquant": (2, 64, directions(4, 3)),
    "qjl": (2, 32, sketched(3)),
    "qjl-k2": (1, 64, sketched(1)),
    "exact-tokens": (2, 32, some_exact),
    "rotatekv": (4, 32, rotated(4, 4, 64, 3)),
    "rotatekv-pairs": (4, 64, rotated(2, 2, 128, 0)),
    "rotatekv-alone": (3, 64, rotated(3, 1, 64, 3)),
    "kvquant": (2, 64, nonuniform(4, 0.02, 1)),
    "kvquant-dense": (1, 64, nonuniform(2, 0.0, 0)),
    "kvquant-odd": (3, 20, nonuniform(3, 0.05, 5)),
    "kept": (2, 64, kept),
    "window": (1, 20, window),
    "ragged": (3, 32, ragged),
}
"""KV heads, head size and how a cache is made of a prompt's full one."""
