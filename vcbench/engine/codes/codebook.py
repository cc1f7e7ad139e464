"""Codes that stand for the levels of a codebook within a range: keys by channel, values by token (KVQuant).

A number x of offset o and range r is coded as the level nearest to (x - o) / r, and stands for decoded[code] * r + o.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcbench.engine.codes.frames import Kind
from vcbench.engine.codes.packing import HALF_MAX
from vcbench.engine.kernels.cpu.codes.coded_blocks import middle_of
from vcbench.engine.kernels.cpu.codes.tiles import level_table

_LEAST_RANGE = 2.0**-14
TIE_SLACK = 2.0**-10
"""Of its range, how far a key may lie beyond a limit and be none of the outliers: keys tied with the limit differ from
it by the rounding of their embedding and of the limit itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codebooks:
    """What the codes of a cache stand for.

    levels, decoded: [L, 2 ** bits] float32 by kind, ascending; what is rounded to, and what a code then stands for.
    offsets, ranges: of key channels, [L, Hk, D] float16; None where they come from the tokens that are coded first.
    outliers: the share of numbers kept exactly, half of it at either end; 0 keeps none.
    """

    bits: int
    levels: dict[Kind, Tensor]
    decoded: dict[Kind, Tensor]
    offsets: Tensor | None
    ranges: Tensor | None
    outliers: float

    def codes(self, scaled: Tensor, kind: Kind, layer: int) -> Tensor:
        """The nearest level of each number, int32. Beyond the outermost level it is that one."""
        levels = self.levels[kind][layer]
        return torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2).int()

    def same_as(self, other: Codebooks) -> bool:
        """Whether codes stand for the same levels in both."""
        alike = self.bits == other.bits and all(torch.equal(x, other.decoded[kind]) for kind, x in self.decoded.items())
        return self is other or alike

    def kernel_levels(self, kind: Kind) -> tuple[int, NDArray[np.float32]]:
        """Form of codes and what they stand for, [L, 16], as the CPU kernels take them: values around their middle."""
        form, levels = level_table(self.decoded[kind].numpy(), self.bits, False)
        return form, levels - (middle_of(form) if kind == "values" else 0)

    def tensors(self) -> list[Tensor]:
        """The tables held, each once, but for the key channels' ranges, which a cache may have of its own."""
        return list({id(x): x for x in (*self.levels.values(), *self.decoded.values())}.values())


def as_stored(offsets: Tensor, ranges: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets and ranges in float16, no range 0."""
    return offsets.clamp(-HALF_MAX, HALF_MAX).half(), ranges.clamp(_LEAST_RANGE, HALF_MAX).half()


def channel_limits(ordered: Tensor, outliers: float) -> tuple[Tensor, Tensor]:
    """Lowest and highest number of each channel once `outliers` / 2 of them at either end are left out.

    ordered: [N, C], ascending along N. Returns two [C].
    """
    beyond = min(round(ordered.shape[0] * outliers / 2), (ordered.shape[0] - 1) // 2)
    return ordered[beyond], ordered[ordered.shape[0] - 1 - beyond]


def value_ranges(x: Tensor, outliers: float) -> tuple[Tensor, Tensor, Tensor]:
    """Offset and range of each token without its outliers, [n] each, and where these are, [n, C] bool.

    x: [n, C], all heads of a token in a row. At either end round(C * outliers / 2) numbers are outliers, at least one
    unless `outliers` is 0; of equal numbers the earlier channels.
    """
    count = side_count(x.shape[1], outliers)
    marked = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    if count:
        order = x.argsort(dim=1, stable=True)
        marked.scatter_(1, order[:, :count], True)
        marked.scatter_(1, (-x).argsort(dim=1, stable=True)[:, :count], True)
    rest = x.masked_fill(marked, torch.inf).amin(1), x.masked_fill(marked, -torch.inf).amax(1)
    low, high = (torch.where(y.isfinite(), y, x.mean(1)) for y in rest)
    return (high + low) / 2, (high - low) / 2, marked


def side_count(channels: int, outliers: float) -> int:
    """How many numbers of a token are outliers at either end."""
    return max(1, round(channels * outliers / 2)) if outliers else 0


def normal_float(bits: int) -> Tensor:
    """The NormalFloat levels: quantiles of a normal distribution scaled to [-1, 1], one of them 0; [2 ** bits].

    Source: QLoRA (arXiv 2305.14314), section 3.
    """
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    half, count = 1 << (bits - 1), 1 << bits
    last = 1 - (1 / (2 * count) + 1 / (2 * (count - 1))) / 2
    positive = normal.icdf(torch.linspace(0.5, last, half + 1, dtype=torch.float64)[1:])
    negative = -normal.icdf(torch.linspace(0.5, last, half, dtype=torch.float64)[1:])
    levels = torch.cat([negative.flip(0), torch.zeros(1, dtype=torch.float64), positive])
    return (levels / levels.abs().max()).float()
