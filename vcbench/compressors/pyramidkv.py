"""PyramidKV: SnapKV's scores, with more budget for lower layers (Cai et al., arXiv 2406.02069)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vcbench.compressors.base import Compressor, top_positions
from vcbench.compressors.checks import check_scores
from vcbench.compressors.snapkv import SnapKV, SnapKVOptions, kept_tokens
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.ragged import RaggedCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class PyramidKVOptions(SnapKVOptions):
    """SnapKV's options; the budget is the mean over layers."""

    beta: float = field(default=20.0, metadata={"doc": "The last layer keeps 1 / beta of the mean besides the window."})

    def __post_init__(self) -> None:
        SnapKVOptions.__post_init__(self)
        if self.beta < 1:
            raise ValueError(f"beta is {self.beta}; give at least 1, which makes all layers equal")


@register("compressor", "pyramidkv")
class PyramidKV(Compressor[PyramidKVOptions]):
    """Layer budgets fall linearly from 2b - b / beta to b / beta entries, b the mean, all besides the window.

    Budgets are rounded so that their sum is exactly the budget; a layer never keeps more than the prompt has, so that
    at factors below 2 the cache is smaller than asked for.
    """

    Options = PyramidKVOptions
    summary = "as snapkv, with budgets that fall from the first layer to the last"
    kind = "drop"
    cache_class = RaggedCache

    @property
    def query_window(self) -> int:
        return self.options.window

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        shape, tokens, scorer = prefill.cache.shape, prefill.cache.tokens, SnapKV(self.options)
        layers = []
        for layer, budget in enumerate(layer_budgets(self.options, shape.n_layers, tokens)):
            if budget == tokens:
                positions = torch.arange(tokens, device=shape.device).expand(shape.n_kv_heads, -1)
            else:
                scores = check_scores(
                    scorer.scores(prefill, layer), shape, tokens, method="pyramidkv", layer=layer, budget=budget
                )
                positions = top_positions(scores, budget)
            layers.append([positions])
        return RaggedCache.gather(prefill.cache, layers)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        kept = sum(layer_budgets(options, architecture.n_layers, tokens))
        entry = 2 * architecture.head_dim * element_bytes + 4
        return kept * architecture.n_kv_heads * entry


def layer_budgets(options: PyramidKVOptions, layers: int, tokens: int) -> list[int]:
    """Entries that each layer keeps, the window included."""
    mean = kept_tokens(options, tokens)
    if mean >= tokens:
        return [tokens] * layers
    scored = mean - options.window
    last = scored / options.beta
    step = 2 * (scored - last) / max(1, layers - 1)
    exact = [2 * scored - last - step * layer for layer in range(layers)] if layers > 1 else [float(scored)]
    budgets, total, given = [], 0.0, 0
    for value in exact:
        total += value
        budgets.append(round(total) - given)
        given += budgets[-1]
    return [min(tokens, options.window + budget) for budget in budgets]
