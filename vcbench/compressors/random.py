"""Noise in place of the prompt's entries: an adversarial drafter, to show that verified output does not care."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vcbench.compressors.base import Compressor, CompressorOptions, dropped_bytes
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomOptions(CompressorOptions):
    """How much noise."""

    keep: float = field(default=0.25, metadata={"doc": "Entries of noise, as a share of the prompt's tokens."})

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; give a share above 0 and at most 1")


@register("compressor", "random")
class RandomKV(Compressor[RandomOptions]):
    """Keys and values drawn from a normal distribution with each layer's own mean square."""

    Options = RandomOptions
    summary = "replaces the prompt's entries by noise (a control: output must still be exact)"
    kind = "noise"
    cache_class = KeptCache

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        shape, tokens = prefill.cache.shape, prefill.cache.tokens
        count = noise_entries(self.options, tokens)
        positions = torch.arange(count, device=shape.device).expand(shape.n_layers, shape.n_kv_heads, -1)
        cache = KeptCache(shape, tokens, positions)
        generator = torch.Generator().manual_seed(seed)
        for layer in range(shape.n_layers):
            noise = []
            for real in prefill.cache.store.read_range(layer, 0, tokens):
                drawn = torch.randn((count, shape.n_kv_heads, shape.head_dim), generator=generator)
                size = real.float().pow(2).mean().sqrt()
                noise.append((drawn.to(shape.device) * size).to(shape.dtype))
            cache.store.write(layer, 0, *noise)
        return cache

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        return dropped_bytes(architecture, noise_entries(options, tokens), element_bytes, positions=True)


def noise_entries(options: RandomOptions, tokens: int) -> int:
    """Entries of noise for a prompt, at least one."""
    return max(1, round(options.keep * tokens))
