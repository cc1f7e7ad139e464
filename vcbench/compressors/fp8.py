"""fp8: keys and values as e4m3 floats with one static scale, as serving engines store them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from vcbench.compressors.base import Compressor, CompressorOptions
from vcbench.engine.codes.coders import FP8Coder
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class FP8Options(CompressorOptions):
    """A scale of 1 is what vLLM uses without calibration."""

    scale: float = field(default=1.0, metadata={"doc": "What a stored 1.0 stands for; 448 times it is the largest."})

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale is {self.scale}; give a finite number above 0")


@register("compressor", "fp8")
class FP8(Compressor[FP8Options]):
    """x / scale, clamped to +-448, as sign, 4 bits of exponent and 3 of mantissa: 8 bits an element and no more.

    Post-RoPE keys. Relative error at most 1 / 17 from scale / 64 up; nothing is calibrated.
    """

    Options = FP8Options
    summary = "8-bit floats (e4m3) with one static scale"
    kind = "quantise"
    cache_class = QuantisedCache

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        shape = prefill.cache.shape
        scheme = Scheme.per_token(shape.head_dim, key_bits=8, value_bits=8, symmetric=True)
        return QuantisedCache.of_prompt(prefill.cache, scheme, FP8Coder(self.options.scale, shape.device))

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        return tokens * architecture.kv_bytes_per_token(1)
