"""Knorm: keep the keys of smallest norm (Devoto et al., arXiv 2406.11430)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.compressors.base import BudgetCompressor, BudgetOptions
from vcbench.engine.model.decoder import Prefill
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class KnormOptions(BudgetOptions):
    """The budget alone."""


@register("compressor", "knorm")
class Knorm(BudgetCompressor[KnormOptions]):
    """Score: -|k|. Needs neither queries nor attention."""

    Options = KnormOptions
    summary = "drops tokens whose keys have the largest norms"

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        keys, _ = prefill.cache.store.read_range(layer, 0, prefill.cache.tokens)
        norms: Tensor = torch.linalg.vector_norm(keys.float(), dim=-1)
        return -norms
