"""The decoder's per-row operations: numba kernels on CPU float32, torch operations in fixed row tiles elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from vcbench.engine.kernels.cpu import decoder_rows as kernels
from vcbench.engine.model.linear import Product, RowMode, in_tiles

MANY_ROWS = 64


class RowOperations(ABC):
    """Operations whose rows are independent of one another, bit for bit."""

    @abstractmethod
    def each(self, function: Product, x: Tensor) -> Tensor:
        """function(x) for a torch function of independent rows, called so that they stay so."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight. x: [n, size]."""

    @abstractmethod
    def norm_heads(self, x: Tensor, first: int, heads: int, weight: Tensor, eps: float) -> None:
        """RMS norm, in place, of `heads` heads of x: [n, columns] from column `first` on."""

    @abstractmethod
    def rotate(self, x: Tensor, heads: int, size: int, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotary embedding, in place, of the first `heads` heads of x: [n, columns]."""

    @abstractmethod
    def gated_silu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up = [gate | up]: [n, 2 * size]; returns [n, size]."""

    @abstractmethod
    def arg_max(self, logits: Tensor) -> list[int]:
        """First index of each row's maximum; -1 for a row that is not finite."""


class CpuRows(RowOperations):
    """Float32 on CPU."""

    def each(self, function: Product, x: Tensor) -> Tensor:
        """One call for each row: torch may reduce a single row in another order than one of several."""
        return torch.cat([function(row) for row in x.split(1)])

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        kernels.rms_norm(x.numpy(), weight.numpy(), eps, out.numpy())
        return out

    def norm_heads(self, x: Tensor, first: int, heads: int, weight: Tensor, eps: float) -> None:
        kernels.norm_heads(x.numpy(), first, heads, weight.shape[0], weight.numpy(), eps)

    def rotate(self, x: Tensor, heads: int, size: int, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        kernels.rotate_heads(x.numpy(), 0, heads, size, positions.numpy(), cos.numpy(), sin.numpy())

    def gated_silu(self, gate_up: Tensor) -> Tensor:
        out = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2))
        run = kernels.gated_silu_of_many if gate_up.shape[0] >= MANY_ROWS else kernels.gated_silu
        run(gate_up.numpy(), out.numpy())
        return out

    def arg_max(self, logits: Tensor) -> list[int]:
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        kernels.arg_max(logits.numpy(), out.numpy())
        result: list[int] = out.tolist()
        return result


class TorchRows(RowOperations):
    """Any device and precision; reductions run over row tiles of one fixed size and in float32."""

    def __init__(self, tile: int, mode: RowMode) -> None:
        """`tile` rows a call, or all of them where it is 0."""
        self.tile, self.mode = tile, mode

    def each(self, function: Product, x: Tensor) -> Tensor:
        return function(x) if self.mode.bulk else in_tiles(function, self.tile, x)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        def norm(rows: Tensor) -> Tensor:
            wide = rows.float()
            scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
            return weight * scaled.to(rows.dtype)

        return self.each(norm, x)

    def norm_heads(self, x: Tensor, first: int, heads: int, weight: Tensor, eps: float) -> None:
        size = weight.shape[0]
        for head in range(heads):
            span = slice(first + head * size, first + (head + 1) * size)
            x[:, span] = self.rms_norm(x[:, span], weight, eps)

    def rotate(self, x: Tensor, heads: int, size: int, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        view = x[:, : heads * size].view(x.shape[0], heads, size)
        a, b = view[..., : size // 2].clone(), view[..., size // 2 :].clone()
        c, s = cos[positions][:, None].to(x.dtype), sin[positions][:, None].to(x.dtype)
        view[..., : size // 2] = a * c - b * s
        view[..., size // 2 :] = b * c + a * s

    def gated_silu(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def arg_max(self, logits: Tensor) -> list[int]:
        highest = logits.amax(-1, keepdim=True)
        index = torch.arange(logits.shape[1], device=logits.device)
        first = torch.where(logits == highest, index, logits.shape[1]).amin(-1)
        finite = torch.isfinite(logits).all(-1)
        result: list[int] = torch.where(finite, first, -1).tolist()
        return result
