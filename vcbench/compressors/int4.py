"""int4: one 4-bit grid per token and head, the plainest quantiser that saves three quarters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vcbench.compressors.base import Compressor, CompressorOptions
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Options(CompressorOptions):
    """No options."""


@register("compressor", "int4")
class Int4(Compressor[Int4Options]):
    """code = round((x - m) / s) with m the minimum and s = (maximum - m) / 15 over a head of a token.

    Post-RoPE keys; m and s are float16: 4 + 32 / D bits an element.
    """

    Options = Int4Options
    summary = "4-bit codes, one scale and minimum a token and head"
    kind = "quantise"
    cache_class = QuantisedCache

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        scheme = Scheme.per_token(prefill.cache.shape.head_dim, key_bits=4, value_bits=4, symmetric=False)
        return QuantisedCache.of_prompt(prefill.cache, scheme)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        per_token = architecture.kv_bytes_per_token(1)
        return tokens * (per_token // 2 + 4 * per_token // architecture.head_dim)
