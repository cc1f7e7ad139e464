"""What methods that evict while decoding have in common (H2O, TOVA): a budget that also bounds what is generated."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor

from vcbench import registry
from vcbench.calibration.base import Calibration
from vcbench.compressors.base import BudgetCompressor, BudgetOptions, top_positions
from vcbench.compressors.checks import checked_layers
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.evicting import EvictingCache, EvictionRule
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture

_SCORE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictingOptions(BudgetOptions):
    """A budget, and whether it also bounds what is generated."""

    eviction: Literal["every-step", "prompt"] = field(
        default="every-step",
        metadata={"doc": "Evict at each committed token, as published, or once, keeping all that is generated."},
    )

    def bound(self, tokens: int) -> int:
        """Entries held at most after a prompt of `tokens`, however long the output gets."""
        return max(self.budget_tokens or round(tokens / self.factor), self.always_kept + 1)


EvictingOptionsT = TypeVar("EvictingOptionsT", bound=EvictingOptions)


class EvictingCompressor(BudgetCompressor[EvictingOptionsT]):
    """A dropping method that goes on judging entries by attention while decoding; see `EvictingCache` for when."""

    def __init__(self, options: EvictingOptionsT, calibration: Calibration | None = None) -> None:
        super().__init__(options, calibration)
        self.cache_class = EvictingCache if options.eviction == "every-step" else KeptCache

    @abstractmethod
    def rule(self, tokens: int) -> EvictionRule:
        """How entries are judged after a prompt of `tokens` tokens."""

    @abstractmethod
    def attention(self, prefill: Prefill, layer: int) -> Tensor:
        """What a layer's prompt entries have been attended to, [Hk, T] float32, as the rule's scores count it."""

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        scores, tokens = self.attention(prefill, layer).clone(), prefill.cache.tokens
        scores[:, max(0, tokens - self.rule(tokens).recent) :] = float("inf")
        return scores

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        if self.options.eviction == "prompt":
            return super().compress(prefill, seed=seed)
        full = prefill.cache
        budget, name = self.budget(full.tokens), registry.name_of("compressor", type(self))
        kept = [top_positions(scores, budget) for scores in self.checked_scores(prefill, budget)]
        gathered = (self.attention(prefill, layer) for layer in range(full.shape.n_layers))
        attention = list(checked_layers(gathered, full.shape, full.tokens, method=name))
        return EvictingCache.of_prompt(full, self.rule(full.tokens), kept, attention)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        kept = super().estimate_bytes(options, architecture, tokens, element_bytes)
        scored = 0 if options.eviction == "prompt" else int(options.bound(tokens))
        return kept + _SCORE_BYTES * architecture.n_layers * architecture.n_kv_heads * scored
