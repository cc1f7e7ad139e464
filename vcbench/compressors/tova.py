"""TOVA: keep what the last token attends to (Oren et al., arXiv 2401.06104)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.compressors.evicting import EvictingCompressor, EvictingOptions
from vcbench.compressors.snapkv import window_attention
from vcbench.engine.kv.evicting import EvictionRule
from vcbench.engine.model.decoder import Prefill
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class TOVAOptions(EvictingOptions):
    """The paper fixes the tokens held; here they follow the prompt unless given."""

    @property
    def always_kept(self) -> int:
        return 1


@register("compressor", "tova")
class TOVA(EvictingCompressor[TOVAOptions]):
    """Score: the last query's attention, averaged over all heads, so that a layer keeps one set of tokens.

    At each committed token the one held that its query attends to least is evicted; the newest stays. Queries are those
    of the lossy cache's own decoding, or of the verified tokens where the cache drafts (see `H2O`). The prompt is
    judged once, by its last query over all of it: eviction while it is read would depend on how it is cut.
    """

    Options = TOVAOptions
    summary = "drops tokens that the last one does not attend to, the same ones in all heads of a layer"

    @property
    def query_window(self) -> int:
        return 1

    def rule(self, tokens: int) -> EvictionRule:
        return EvictionRule(budget=self.options.bound(tokens), recent=1, scores="latest", shared=True)

    def attention(self, prefill: Prefill, layer: int) -> Tensor:
        keys, _ = prefill.cache.store.read_range(layer, 0, prefill.cache.tokens)
        before = window_attention(prefill.queries[layer][-1:], keys, keys.shape[1] - 1).mean(0)
        return torch.cat([before, 1 - before.sum(0, keepdim=True)]).expand(keys.shape[0], -1)
