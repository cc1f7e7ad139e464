"""StreamingLLM: keep the first few tokens and a sliding window (Xiao et al., arXiv 2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vcbench.compressors.base import Compressor, CompressorOptions, check_factor, dropped_bytes
from vcbench.engine.cache import KVCache
from vcbench.engine.decoder import Prefill
from vcbench.engine.kept import WindowCache
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingLLMOptions(CompressorOptions):
    """Sinks and window; the paper keeps 4 sinks and a fixed window."""

    factor: float = field(default=4.0, metadata={"doc": "Keep 1 / factor of the prompt's tokens, sinks included."})
    budget_tokens: int | None = field(default=None, metadata={"doc": "Keep this many tokens instead of a share."})
    sinks: int = field(default=4, metadata={"doc": "First tokens that always stay."})

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if self.sinks < 0:
            raise ValueError(f"sinks is {self.sinks}; give 0 or more")
        if self.budget_tokens is not None and self.budget_tokens <= self.sinks:
            raise ValueError(f"budget_tokens is {self.budget_tokens}; give more than the {self.sinks} sinks")


@register("compressor", "streamingllm")
class StreamingLLM(Compressor[StreamingLLMOptions]):
    """Positions stay the original ones. The window slides at each commit, over prompt and output alike."""

    Options = StreamingLLMOptions
    summary = "keeps the first tokens and a sliding window of the last"
    kind = "drop"
    cache_class = WindowCache

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        budget = window_budget(self.options, prefill.cache.tokens)
        return WindowCache.of_prompt(prefill.cache, self.options.sinks, budget - self.options.sinks)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        kept = min(tokens, window_budget(options, tokens))
        return dropped_bytes(architecture, kept, element_bytes, positions=False)


def window_budget(options: StreamingLLMOptions, tokens: int) -> int:
    """Tokens held once the window is full, at least one besides the sinks."""
    return max(options.budget_tokens or round(tokens / options.factor), options.sinks + 1)
