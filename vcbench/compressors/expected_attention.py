"""Expected Attention: keep what queries still to come should attend to (Devoto et al., arXiv 2510.00636)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vcbench.compressors.base import BudgetCompressor, BudgetOptions
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Prefill
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic, unrotate
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAttentionOptions(BudgetOptions):
    """The published code's defaults, its budget aside."""

    horizon: int = field(default=512, metadata={"doc": "Positions after the prompt over which queries are expected."})
    sinks: int = field(default=4, metadata={"doc": "First tokens: they always stay, and their queries do not count."})
    covariance: bool = field(default=True, metadata={"doc": "Use the queries' covariance besides their mean."})
    value_norm: bool = field(default=True, metadata={"doc": "Weigh an entry by the norm of its value."})
    epsilon: float = field(default=0.0, metadata={"doc": "Added to the expected attention before the weighing."})

    def __post_init__(self) -> None:
        BudgetOptions.__post_init__(self)
        if self.horizon < 1:
            raise ValueError(f"horizon is {self.horizon}; give at least 1")
        if self.sinks < 0:
            raise ValueError(f"sinks is {self.sinks}; give 0 or more")
        if self.epsilon < 0:
            raise ValueError(f"epsilon is {self.epsilon}; give 0 or more")

    @property
    def always_kept(self) -> int:
        return self.sinks


@register("compressor", "expected-attention")
class ExpectedAttention(BudgetCompressor[ExpectedAttentionOptions]):
    """Queries to come are taken as normal, with mean m and covariance S of the prompt's own pre-RoPE queries.

    Both are rotated by the mean rotation over the next `horizon` positions. Key k of a query head then expects
    softmax(k.m / sqrt(D) + k.S.k / 2D); the average over the head's query group, times the norm of the value, is the
    score. Needs no attention weights.
    """

    Options = ExpectedAttentionOptions
    summary = "drops tokens that queries to come are not expected to attend to"

    @property
    def statistics(self) -> tuple[Statistic[Any], ...]:
        return (QueryMoments(self.options.sinks),)

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        o, tokens = self.options, prefill.cache.tokens
        keys, values = prefill.cache.store.read_range(layer, 0, tokens)
        moments = prefill.statistic(QueryMoments(o.sinks))
        rope = prefill.model().rope
        rope.reserve(tokens + o.horizon)
        span = slice(tokens, tokens + o.horizon)
        cos, sin = rope.cos[span].mean(0), rope.sin[span].mean(0)
        mean = rotate_by(moments.mean[layer], cos, sin)
        covariance = rotate_by(rotate_by(moments.covariance[layer], cos, sin).mT, cos, sin) if o.covariance else None
        expected = expected_attention(keys[:, o.sinks :].float(), mean, covariance) + o.epsilon
        if o.value_norm:
            expected = expected * values[:, o.sinks :].float().norm(dim=-1)
        return torch.nn.functional.pad(expected, (o.sinks, 0), value=float("inf"))


def rotate_by(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [..., D] under the (mean) rotation with cos, sin: [D / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def expected_attention(keys: Tensor, mean: Tensor, covariance: Tensor | None) -> Tensor:
    """Expected softmax weight of each key, averaged over the query heads of its group: [Hk, T].

    keys: [Hk, T, D]; mean: [H, D] and covariance: [H, D, D] of the queries, heads of a group next to one another.
    """
    kv_heads, _, size = keys.shape
    logits = torch.einsum("htd,hgd->hgt", keys, mean.unflatten(0, (kv_heads, -1))) / size**0.5
    if covariance is not None:
        spread = torch.einsum("htd,hgde->hgte", keys, covariance.unflatten(0, (kv_heads, -1)))
        logits = logits + (spread * keys[:, None]).sum(-1) / (2 * size)
    return torch.softmax(logits, dim=-1).mean(1)


@dataclass(frozen=True, slots=True)
class Moments:
    """Of pre-RoPE queries: mean [L, H, D] and covariance [L, H, D, D] (divided by the count), float32."""

    mean: Tensor
    covariance: Tensor


@dataclass(frozen=True, slots=True)
class QueryMoments(Statistic[Moments]):
    """Mean and covariance of the prompt's pre-RoPE queries from position `skip` on."""

    skip: int

    def begin(self, shape: KVShape, tokens: int) -> Accumulator[Moments]:
        return _RunningMoments(shape, self.skip)


class _RunningMoments(Accumulator[Moments]):
    """Chunks are centred on their own means and then joined, so that a large mean costs no digits."""

    def __init__(self, shape: KVShape, skip: int) -> None:
        self.skip = skip
        self.counts = [0] * shape.n_layers
        size = (shape.n_layers, shape.n_heads, shape.head_dim)
        self.mean = torch.zeros(size, device=shape.device)
        self.scatter = torch.zeros((*size, shape.head_dim), device=shape.device)

    def add(self, rows: LayerRows) -> None:
        start = max(rows.start, self.skip)
        q = unrotate(rows.q[start - rows.start :], start, rows.cos, rows.sin).transpose(0, 1)
        count = q.shape[1]
        if count == 0:
            return
        layer, before = rows.layer, self.counts[rows.layer]
        centre = q.mean(1)
        off = q - centre[:, None]
        step = centre - self.mean[layer]
        between = torch.einsum("hd,he->hde", step, step) * (before * count / (before + count))
        self.scatter[layer] += torch.bmm(off.mT, off) + between
        self.mean[layer] += step * (count / (before + count))
        self.counts[layer] = before + count

    def result(self) -> Moments:
        return Moments(self.mean, self.scatter / max(1, self.counts[0]))
