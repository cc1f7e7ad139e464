"""No compression: the draft cache keeps every entry, so that every draft must be accepted. A control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vcbench.compressors.base import CompressorOptions, DroppingCompressor, dropped_bytes
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class NoneOptions(CompressorOptions):
    """No options."""


@register("compressor", "none")
class NoCompression(DroppingCompressor[NoneOptions]):
    """Keeps everything."""

    Options = NoneOptions
    summary = "keeps every entry; every draft must be accepted (a control)"
    kind = "none"

    def budget(self, tokens: int) -> int:
        return tokens

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        raise AssertionError("nothing is dropped, so nothing is scored")

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        return dropped_bytes(architecture, tokens, element_bytes, positions=True)
