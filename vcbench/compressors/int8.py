"""int8: one symmetric 8-bit scale per token and head, the near-lossless baseline."""

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
class Int8Options(CompressorOptions):
    """No options."""


@register("compressor", "int8")
class Int8(Compressor[Int8Options]):
    """code = round(x / s), s = max|x| / 127 over a head of a token, stored as float16: 8 + 16 / D bits an element."""

    Options = Int8Options
    summary = "8-bit codes, one scale a token and head"
    kind = "quantise"
    cache_class = QuantisedCache

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        scheme = Scheme.per_token(prefill.cache.shape.head_dim, key_bits=8, value_bits=8, symmetric=True)
        return QuantisedCache.of_prompt(prefill.cache, scheme)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        per_token = architecture.kv_bytes_per_token(1)
        return tokens * (per_token + 2 * per_token // architecture.head_dim)
