"""H2O: keep the tokens that have gathered most attention, and the most recent ones (Zhang et al., arXiv 2306.14048)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vcbench.compressors.evicting import EvictingCompressor, EvictingOptions
from vcbench.engine.attention.key_shares import Columns, attention_by_column
from vcbench.engine.kv.evicting import EvictionRule
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Prefill
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class H2OOptions(EvictingOptions):
    """The published script keeps a tenth of the prompt as heavy hitters and a tenth as recent tokens."""

    factor: float = field(
        default=5.0, metadata={"doc": "Keep 1 / factor of the prompt's tokens, recent ones included."}
    )
    recent: float = field(default=0.5, metadata={"doc": "Share of the budget that goes to the last tokens."})

    def __post_init__(self) -> None:
        EvictingOptions.__post_init__(self)
        if not 0 <= self.recent < 1:
            raise ValueError(f"recent is {self.recent}; give a share of at least 0 and below 1")


@register("compressor", "h2o")
class H2O(EvictingCompressor[H2OOptions]):
    """Score: attention received from all queries so far, summed over them and over the head's query group.

    Early tokens are seen by more queries and score higher for it, as in the paper. Prompt queries attend to the whole
    prompt, each later one to what is then held, after which the least of the tokens that are not recent is evicted,
    head by head. This happens when a token is committed, never on a draft: decoding with the lossy cache adds its own
    attention, drafting for verification that of the verified tokens' queries, which the full cache hands over.
    Cost: the prompt's attention weights once more, block by block; then those of each token over the budget.
    """

    Options = H2OOptions
    summary = "keeps tokens that gathered most attention over the prompt, and the most recent ones"

    @property
    def statistics(self) -> tuple[Statistic[Any], ...]:
        return (AttentionReceived(),)

    def rule(self, tokens: int) -> EvictionRule:
        budget = self.options.bound(tokens)
        return EvictionRule(budget=budget, recent=int(budget * self.options.recent), scores="sum")

    def attention(self, prefill: Prefill, layer: int) -> Tensor:
        return prefill.statistic(AttentionReceived())[layer]


@dataclass(frozen=True, slots=True)
class AttentionReceived(Statistic[Tensor]):
    """Column sums of the prompt's attention: [L, Hk, T], float32, summed over each head's query group."""

    def begin(self, shape: KVShape, tokens: int) -> Accumulator[Tensor]:
        return _ColumnSums(shape, tokens)


class _ColumnSums(Accumulator[Tensor]):
    def __init__(self, shape: KVShape, tokens: int) -> None:
        self.sums = torch.zeros((shape.n_layers, shape.n_kv_heads, tokens), device=shape.device)

    def add(self, rows: LayerRows) -> None:
        stop = rows.start + rows.q.shape[0]
        whole = (0, stop)
        columns = Columns(
            store=rows.cache.store,
            layer=rows.layer,
            first_visible=rows.start + 1,
            seen=[whole],
            wanted=whole,
            reduce="sum",
        )
        found, _ = attention_by_column(rows.q, columns)
        self.sums[rows.layer, :, :stop] += found.unflatten(0, (self.sums.shape[1], -1)).sum(1)

    def result(self) -> Tensor:
        return self.sums
