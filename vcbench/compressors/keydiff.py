"""KeyDiff: keep the keys that differ most from the others (Park et al., arXiv 2504.15364)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.compressors.base import BudgetCompressor, BudgetOptions
from vcbench.engine.model.decoder import Prefill
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDiffOptions(BudgetOptions):
    """The budget alone."""


@register("compressor", "keydiff")
class KeyDiff(BudgetCompressor[KeyDiffOptions]):
    """Score: -cos(k, mean of k_j / |k_j|), post-RoPE keys. Needs neither queries nor attention."""

    Options = KeyDiffOptions
    summary = "drops tokens whose keys resemble the average key"

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        keys, _ = prefill.cache.store.read_range(layer, 0, prefill.cache.tokens)
        directions = torch.nn.functional.normalize(keys.float(), dim=-1)
        return -torch.nn.functional.cosine_similarity(keys.float(), directions.mean(1, keepdim=True), dim=-1)
