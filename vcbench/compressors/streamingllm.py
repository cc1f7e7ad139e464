"""StreamingLLM: keep the first few tokens and a sliding window (Xiao et al., arXiv 2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vcbench.calibration.base import Calibration
from vcbench.compressors.base import Compressor, CompressorOptions, check_factor, dropped_bytes
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.kept import WindowCache
from vcbench.engine.kv.reindexed import ReindexedCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register

_MOVED_BYTES = 4
"""A key element of a sink whose position moves is float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingLLMOptions(CompressorOptions):
    """Sinks and window; the paper keeps 4 sinks and a fixed window."""

    factor: float = field(default=4.0, metadata={"doc": "Keep 1 / factor of the prompt's tokens, sinks included."})
    budget_tokens: int | None = field(default=None, metadata={"doc": "Keep this many tokens instead of a share."})
    sinks: int = field(default=4, metadata={"doc": "First tokens that always stay."})
    positions: Literal["original", "reindexed"] = field(
        default="original",
        metadata={"doc": "Positions that attention sees: those in the text, or those in the cache as in the paper."},
    )

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if self.sinks < 0:
            raise ValueError(f"sinks is {self.sinks}; give 0 or more")
        if self.budget_tokens is not None and self.budget_tokens <= self.sinks:
            raise ValueError(f"budget_tokens is {self.budget_tokens}; give more than the {self.sinks} sinks")


@register("compressor", "streamingllm")
class StreamingLLM(Compressor[StreamingLLMOptions]):
    """The window slides at each commit, over prompt and output alike.

    With re-indexed positions the sinks come directly before the window, however long the text between was: the paper's
    way past a model's context, where no distance may exceed the cache's size. Within the context full KV sees the
    original ones.
    """

    Options = StreamingLLMOptions
    summary = "keeps the first tokens and a sliding window of the last"
    kind = "drop"

    def __init__(self, options: StreamingLLMOptions, calibration: Calibration | None = None) -> None:
        super().__init__(options, calibration)
        self.cache_class = ReindexedCache if options.positions == "reindexed" else WindowCache

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        full, sinks = prefill.cache, self.options.sinks
        window = window_budget(self.options, full.tokens) - sinks
        if self.options.positions == "reindexed":
            return ReindexedCache(full.shape, sinks, window, prefill.model().rope).take_prompt(full)
        return WindowCache(full.shape, sinks, window).take_prompt(full)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        kept = min(tokens, window_budget(options, tokens))
        moved = int(min(options.sinks, tokens)) if options.positions == "reindexed" else 0
        keys = moved * architecture.kv_bytes_per_token(_MOVED_BYTES) // 2
        return dropped_bytes(architecture, kept, element_bytes, positions=False) + keys


def window_budget(options: StreamingLLMOptions, tokens: int) -> int:
    """Tokens held once the window is full, at least one besides the sinks."""
    return max(options.budget_tokens or round(tokens / options.factor), options.sinks + 1)
