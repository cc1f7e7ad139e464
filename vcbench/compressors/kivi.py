"""KIVI: keys quantised per channel, values per token (Liu et al., arXiv 2402.02750)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vcbench.compressors.base import Compressor, CompressorOptions
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class KIVIOptions(CompressorOptions):
    """The paper's defaults: groups of 32, 128 tokens exact. The authors advise 4 bits for GQA models."""

    bits: Literal[2, 3, 4] = field(default=4, metadata={"doc": "Bits of a code."})
    group: Literal[32, 64, 128] = field(default=32, metadata={"doc": "Elements that share a scale and a minimum."})
    residual: int = field(default=128, metadata={"doc": "Newest tokens kept exact; a multiple of the group."})

    def __post_init__(self) -> None:
        if self.residual < self.group or self.residual % self.group:
            raise ValueError(f"residual is {self.residual}; give a multiple of the group of {self.group}")


@register("compressor", "kivi")
class KIVI(Compressor[KIVIOptions]):
    """Post-RoPE keys. Exact keys are flushed `residual` at a time; exact values roll, the oldest leaving one by one.

    Scale and minimum are float16: bits + 32 / group bits an element, besides the exact tokens.
    """

    Options = KIVIOptions
    summary = "2- to 4-bit codes: keys per channel, values per token, newest tokens exact"
    kind = "quantise"
    cache_class = QuantisedCache

    @classmethod
    def unsupported(cls, options: Any, architecture: Architecture) -> str | None:
        if architecture.head_dim % options.group:
            return f"kivi needs a head size divisible by its group of {options.group}; it is {architecture.head_dim}"
        return None

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        o = self.options
        scheme = Scheme(
            key_bits=o.bits,
            value_bits=o.bits,
            key_axis="channel",
            key_group=o.group,
            value_group=o.group,
            symmetric=False,
            key_flush=o.residual,
            value_residual=o.residual,
        )
        return QuantisedCache.of_prompt(prefill.cache, scheme)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        coded = tokens - tokens % options.residual, max(0, tokens - options.residual)
        per_element = (options.bits + 32 / options.group) / 8
        elements = architecture.kv_bytes_per_token(1) / 2
        return int(sum(elements * (n * per_element + (tokens - n) * element_bytes) for n in coded))
