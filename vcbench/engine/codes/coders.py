"""How vectors become codes and back: uniform grids, FP8, and Lloyd-Max levels of directions (TurboQuant)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from vcbench.engine.codes.frames import Kind
from vcbench.engine.codes.lloyd_max import lloyd_max
from vcbench.engine.codes.packing import HALF_MAX, dequantise, quantise, quantise_clipped

ScaleRule = Literal["plain", "norm", "unbiased"]


class Coder(ABC):
    """Turns groups of numbers into codes. `bits` of keys and of values may differ."""

    scaled = True
    """Whether each group has a step of its own."""

    float8_scale: float | None = None
    """What 1 stands for where codes are e4m3 numbers."""

    @abstractmethod
    def encode(self, x: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        """Codes (int32, x's shape), steps and minima (float16, without the last dimension) of groups x[..., group]."""

    @abstractmethod
    def decode(self, codes: Tensor, steps: Tensor, minima: Tensor, kind: Kind) -> Tensor:
        """The float32 values of codes[..., group]."""

    def levels(self, kind: Kind) -> Tensor:
        """What each code stands for before it is scaled, float32; empty where the kernel computes it from the code."""
        return torch.empty(0)

    def same_as(self, other: Coder) -> bool:
        """Whether codes stand for the same in both."""
        if self is other:
            return True
        if type(self) is not type(other) or self.float8_scale != other.float8_scale:
            return False
        return torch.equal(self.levels("keys"), other.levels("keys")) and torch.equal(
            self.levels("values"), other.levels("values")
        )

    def tensors(self) -> list[Tensor]:
        """Every tensor held."""
        return []


class UniformCoder(Coder):
    """A uniform grid between each group's extremes, or a symmetric one."""

    def __init__(self, key_bits: int, value_bits: int, *, symmetric: bool) -> None:
        self.bits: dict[Kind, int] = {"keys": key_bits, "values": value_bits}
        self.symmetric = symmetric

    def encode(self, x: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        return quantise(x, self.bits[kind], symmetric=self.symmetric)

    def decode(self, codes: Tensor, steps: Tensor, minima: Tensor, kind: Kind) -> Tensor:
        return dequantise(codes, steps, minima, self.bits[kind], symmetric=self.symmetric)


class ClippedCoder(UniformCoder):
    """A uniform grid over `clip` times each group's extremes, with a whole zero."""

    def __init__(self, key_bits: int, value_bits: int, clip: float) -> None:
        super().__init__(key_bits, value_bits, symmetric=False)
        self.clip = clip

    def encode(self, x: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        return quantise_clipped(x, self.bits[kind], self.clip)


class FP8Coder(Coder):
    """e4m3 with one static scale: no step of its own for any group. Values beyond 448 scales saturate."""

    scaled = False

    def __init__(self, scale: float, device: torch.device) -> None:
        self.scale = self.float8_scale = scale
        every = torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn).float()
        self._levels = (every * scale).nan_to_num(0.0)

    def encode(self, x: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        finite = (x / self.scale).clamp(-448.0, 448.0)
        none = torch.empty(0, dtype=torch.float16, device=x.device)
        return finite.to(torch.float8_e4m3fn).view(torch.uint8).int(), none, none

    def decode(self, codes: Tensor, steps: Tensor, minima: Tensor, kind: Kind) -> Tensor:
        return self._levels[codes]

    def levels(self, kind: Kind) -> Tensor:
        return self._levels

    def tensors(self) -> list[Tensor]:
        return [self._levels]


class DirectionCoder(Coder):
    """TurboQuant: a vector is a norm and a direction, whose coordinates take the nearest Lloyd-Max level.

    The levels are those of random directions, which a `frames.Turned` with a random rotation makes of any vector.

    What is stored as the norm makes up for the levels' shrinkage as `rule` says: the norm itself (plain), the norm over
    that of the levels (norm), or what makes <x, x^> = |x|^2 (unbiased). The bytes are the same.
    """

    def __init__(self, key_bits: int, value_bits: int, rule: ScaleRule, size: int, device: torch.device) -> None:
        """size: D."""
        self.rule = rule
        bits: dict[Kind, int] = {"keys": key_bits, "values": value_bits}
        self._levels = {
            kind: torch.tensor(lloyd_max(count, size).levels / size**0.5, dtype=torch.float32, device=device)
            for kind, count in bits.items()
        }

    def encode(self, x: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Tensor]:
        levels = self._levels[kind]
        wide = x.double()
        norm = wide.square().sum(-1, keepdim=True).sqrt()
        direction = torch.where(norm > 0, wide / norm, 0.0)
        codes = torch.bucketize(direction.float(), (levels[1:] + levels[:-1]) / 2)
        chosen = levels[codes].double()
        if self.rule == "norm":
            norm = norm / chosen.square().sum(-1, keepdim=True).sqrt()
        elif self.rule == "unbiased":
            norm = torch.where(norm > 0, norm / (direction * chosen).sum(-1, keepdim=True), 0.0)
        return codes.int(), norm[..., 0].clamp(max=HALF_MAX).half(), norm.new_empty(0, dtype=torch.float16)

    def decode(self, codes: Tensor, steps: Tensor, minima: Tensor, kind: Kind) -> Tensor:
        return self._levels[kind][codes] * steps.float().unsqueeze(-1)

    def levels(self, kind: Kind) -> Tensor:
        return self._levels[kind]

    def tensors(self) -> list[Tensor]:
        return list(self._levels.values())
