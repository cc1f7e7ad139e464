"""SnapKV: keep what the prompt's last queries attend to (Li et al., arXiv 2404.14469)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vcbench.compressors.base import CompressorOptions, DroppingCompressor, check_factor, dropped_bytes
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapKVOptions(CompressorOptions):
    """Budget and scoring; the paper's code uses window 32 to 64, kernel 5 to 7, budgets of 1,024 to 4,096 tokens."""

    factor: float = field(default=4.0, metadata={"doc": "Keep 1 / factor of the prompt, the window included."})
    budget_tokens: int | None = field(default=None, metadata={"doc": "Keep this many tokens instead of a share."})
    window: int = field(default=32, metadata={"doc": "Last prompt tokens whose queries score; they always stay."})
    kernel: int = field(default=5, metadata={"doc": "Width of the pooling over positions; odd."})
    pooling: Literal["average", "max"] = field(default="average", metadata={"doc": "How scores are pooled."})

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if self.window < 1:
            raise ValueError(f"window is {self.window}; give at least 1")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}; give an odd number")
        if self.budget_tokens is not None and self.budget_tokens <= self.window:
            raise ValueError(f"budget_tokens is {self.budget_tokens}; give more than the window of {self.window}")


@register("compressor", "snapkv")
class SnapKV(DroppingCompressor[SnapKVOptions]):
    """Scores once, after the prefill. A prompt no longer than its budget, or than the window, is kept whole.

    Score of position j for a KV head: softmax attention of the last `window` queries, summed over them, pooled over
    neighbouring positions (zero padding), averaged over the head's query group. Cost: `window` extra query rows.
    """

    Options = SnapKVOptions
    summary = "drops tokens that the prompt's last queries do not attend to"

    @property
    def query_window(self) -> int:
        return self.options.window

    def budget(self, tokens: int) -> int:
        return kept_tokens(self.options, tokens)

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        q = prefill.queries[layer][-self.options.window :]
        keys, _ = prefill.cache.store.read_range(layer, 0, prefill.cache.tokens)
        seen = window_attention(q, keys, keys.shape[1] - q.shape[0])
        pooled = self._pool(seen)
        group = q.shape[1] // keys.shape[0]
        grouped = pooled.view(keys.shape[0], group, -1).mean(1)
        stay = torch.full((keys.shape[0], q.shape[0]), float("inf"), device=keys.device)
        return torch.cat([grouped, stay], dim=1)

    def _pool(self, scores: Tensor) -> Tensor:
        size = self.options.kernel
        if self.options.pooling == "max":
            return torch.nn.functional.max_pool1d(scores[None], size, stride=1, padding=size // 2)[0]
        return torch.nn.functional.avg_pool1d(scores[None], size, stride=1, padding=size // 2)[0]

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        return dropped_bytes(architecture, kept_tokens(options, tokens), element_bytes, positions=True)


def kept_tokens(options: SnapKVOptions, tokens: int) -> int:
    """How many tokens of a prompt stay; never fewer than the window and one more."""
    if tokens <= options.window + 1:
        return tokens
    wanted = options.budget_tokens or round(tokens / options.factor)
    return min(tokens, max(wanted, options.window + 1))


def window_attention(q: Tensor, keys: Tensor, before: int) -> Tensor:
    """Attention that the first `before` keys receive from a window of queries, summed over the window.

    q: [W, H, D], the queries at positions before .. before + W - 1. keys: [Hk, T, D] with T = before + W.
    Returns [H, before], float32.
    """
    window, heads, size = q.shape
    group = heads // keys.shape[0]
    rows = q.permute(1, 0, 2).reshape(keys.shape[0], group * window, size)
    logits = torch.bmm(rows.float(), keys.float().transpose(1, 2)).view(heads, window, -1) / size**0.5
    future = torch.ones(window, window, dtype=torch.bool, device=q.device).triu(1)
    logits[..., before:].masked_fill_(future, float("-inf"))
    return torch.softmax(logits, dim=-1)[..., :before].sum(1)
