"""TOVA: keep what the last token attends to (Oren et al., arXiv 2401.06104)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.compressors.base import BudgetCompressor, BudgetOptions
from vcbench.compressors.snapkv import window_attention
from vcbench.engine.decoder import Prefill
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class TOVAOptions(BudgetOptions):
    """The budget alone."""

    @property
    def always_kept(self) -> int:
        return 1


@register("compressor", "tova")
class TOVA(BudgetCompressor[TOVAOptions]):
    """Score: the last query's attention, averaged over all heads, so that a layer keeps one set of tokens.

    Scored once, at the end of the prompt; the paper also evicts at every step, which a draft cache must not do on
    tokens that are still to be verified. The last token stays.
    """

    Options = TOVAOptions
    summary = "drops tokens that the last one does not attend to, the same ones in all heads of a layer"

    @property
    def query_window(self) -> int:
        return 1

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        keys, _ = prefill.cache.store.read_range(layer, 0, prefill.cache.tokens)
        shares = window_attention(prefill.queries[layer][-1:], keys, keys.shape[1] - 1).mean(0)
        last = shares.new_full((1,), float("inf"))
        return torch.cat([shares, last]).expand(keys.shape[0], -1)
