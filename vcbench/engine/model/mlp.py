"""The feed-forward part of a decoder layer: dense, or a sparse mixture of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from vcbench.engine.model.linear import Linear
from vcbench.engine.model.row_operations import RowOperations
from vcbench.models.architecture import Experts


class FeedForward(ABC):
    """Maps x: [n, hidden] to [n, hidden], each row by itself."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """The layer's output."""

    @abstractmethod
    def linears(self) -> list[Linear]:
        """Its linear layers, for the probe."""

    @abstractmethod
    def mapped(self, change: Callable[[Linear], Linear]) -> FeedForward:
        """The same with each linear layer changed, but for the router, whose choices are all or nothing."""


class DenseMLP(FeedForward):
    """down(silu(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, gate_up: Linear, down: Linear, rows: RowOperations) -> None:
        self.gate_up, self.down, self.rows = gate_up, down, rows

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.rows.gated_silu(self.gate_up(x)))

    def linears(self) -> list[Linear]:
        return [self.gate_up, self.down]

    def mapped(self, change: Callable[[Linear], Linear]) -> DenseMLP:
        return DenseMLP(change(self.gate_up), change(self.down), self.rows)


class SparseMLP(FeedForward):
    """Each token's `per_token` experts, weighted by the router's softmax and added in ascending order of expert."""

    def __init__(self, router: Linear, experts: list[DenseMLP], options: Experts, rows: RowOperations) -> None:
        self.router, self.experts, self.options, self.rows = router, experts, options, rows

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for index in torch.unique(chosen).tolist():
            rows, slots = torch.where(chosen == index)
            out[rows] += self.experts[index](x[rows]) * weights[rows, slots, None]
        return out

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and indices of the chosen experts, both [n, per_token]."""

        def choose(logits: Tensor) -> Tensor:
            probabilities = torch.softmax(logits.float(), dim=-1)
            values, chosen = torch.topk(probabilities, self.options.per_token, dim=-1)
            if self.options.normalise:
                values = values / values.sum(-1, keepdim=True)
            return torch.cat([values, chosen.float()], dim=-1)

        both = self.rows.each(choose, self.router(x))
        values, chosen = both.chunk(2, dim=-1)
        return values.to(x.dtype), chosen.long()

    def linears(self) -> list[Linear]:
        return [self.router, *(linear for expert in self.experts for linear in expert.linears())]

    def mapped(self, change: Callable[[Linear], Linear]) -> SparseMLP:
        return SparseMLP(self.router, [expert.mapped(change) for expert in self.experts], self.options, self.rows)
