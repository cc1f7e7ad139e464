"""Rotary position embedding tables for the scalings `default`, `linear`, `llama3` and `yarn`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.models.architecture import Rope


class RopeTable:
    """cos and sin of position x frequency, float32 [P, D / 2], grown on demand."""

    def __init__(self, rope: Rope, head_dim: int, device: torch.device) -> None:
        self._frequencies, self._scale = frequencies(rope, head_dim)
        self._device = device
        self.cos, self.sin = self._rows(0, 0)
        self.blocks = BlockRope(self)

    def reserve(self, positions: int) -> None:
        """Makes the tables reach position `positions` - 1."""
        held = self.cos.shape[0]
        if positions <= held:
            return
        cos, sin = self._rows(held, max(positions, 2 * held, 1024))
        self.cos, self.sin = torch.cat([self.cos, cos]), torch.cat([self.sin, sin])

    def rotated(self, x: Tensor, start: int) -> Tensor:
        """x: [..., n, D] turned to positions start .. start + n - 1; float32."""
        stop = start + x.shape[-2]
        self.reserve(stop)
        return rotated(x, self.cos[start:stop], self.sin[start:stop])

    def unrotated(self, x: Tensor, start: int) -> Tensor:
        """What `rotated` turned into x: [..., n, D]; float32."""
        stop = start + x.shape[-2]
        self.reserve(stop)
        return unrotated(x, self.cos[start:stop], self.sin[start:stop])

    def unscaled(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the first positions without the factor of YaRN, [positions, D / 2]."""
        angles = self._angles(0, positions)
        return angles.cos().to(self._device), angles.sin().to(self._device)

    def _angles(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, dtype=torch.float32)[:, None] * self._frequencies[None, :]

    def _rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        angles = self._angles(start, stop)
        return (angles.cos() * self._scale).to(self._device), (angles.sin() * self._scale).to(self._device)


class BlockRope:
    """The rotary embedding of a position as that of its block's first one, and then that of its place in the block.

    The angle of a far position is rounded to 1e-4 and more, so that this sum is not quite it: what is turned by the sum
    is taken back by the sum. cos, sin: of the places, float32 [D / 2, 64], the form of the CPU kernels.
    """

    def __init__(self, table: RopeTable) -> None:
        self._table = table
        self._places = table.unscaled(BLOCK)
        self.cos, self.sin = (x.t().contiguous() for x in self._places)
        self._starts = self._by_position = table.cos[:0], table.sin[:0]

    def starts(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the first position of at least the blocks of `positions` positions, [blocks, D / 2] each."""
        blocks = -(-positions // BLOCK)
        if self._starts[0].shape[0] < blocks:
            self._table.reserve(blocks * BLOCK)
            self._starts = self._table.cos[::BLOCK].contiguous(), self._table.sin[::BLOCK].contiguous()
        return self._starts

    def by_position(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of at least so many positions, [positions, D / 2] each: the form of the GPU kernels."""
        held = self._by_position[0].shape[0]
        if held < positions:
            self._by_position = self._rows(0, max(positions, 2 * held, 1024))
        return self._by_position

    def rotated(self, x: Tensor, start: int) -> Tensor:
        """x: [..., n, D] turned to positions start .. start + n - 1; float32."""
        return rotated(x, *self._rows(start, start + x.shape[-2]))

    def unrotated(self, x: Tensor, start: int) -> Tensor:
        """What `rotated` turned into x: [..., n, D]; float32."""
        return unrotated(x, *self._rows(start, start + x.shape[-2]))

    def _rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """cos and sin of positions, [stop - start, D / 2] each."""
        positions = torch.arange(start, stop, device=self.cos.device)
        first_cos, first_sin = (x[positions // BLOCK].double() for x in self.starts(stop))
        cos, sin = (x[positions % BLOCK].double() for x in self._places)
        return (first_cos * cos - first_sin * sin).float(), (first_sin * cos + first_cos * sin).float()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [..., D], pairs (d, d + D / 2) turned by the angles of cos, sin: [..., D / 2]; float32."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def unrotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `rotated` turned into x; tables that also scale (YaRN) are taken back with their scale."""
    a, b = x.float().chunk(2, dim=-1)
    size = cos * cos + sin * sin
    return torch.cat([(a * cos + b * sin) / size, (b * cos - a * sin) / size], dim=-1)


def frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Angles per position [D / 2], float32, and the factor on cos and sin."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return plain, 1.0
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    return _yarn(rope, head_dim, plain)


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1)."""
    wavelength = 2 * math.pi / plain
    longest = rope.original_max_position / rope.low_freq_factor
    shortest = rope.original_max_position / rope.high_freq_factor
    blend = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    mixed = (1 - blend) * plain / rope.factor + blend * plain
    stretched = torch.where(wavelength > longest, plain / rope.factor, plain)
    between = (wavelength <= longest) & (wavelength >= shortest)
    return torch.where(between, mixed, stretched)


def _yarn(rope: Rope, head_dim: int, plain: Tensor) -> tuple[Tensor, float]:
    """Interpolates dimensions by the number of turns they make in the original context (YaRN, arXiv 2309.00071)."""

    def dimension(turns: float) -> float:
        scaled = rope.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(scaled) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = (high - low) or 0.001
    keep = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / rope.factor * (1 - keep) + plain * keep, _yarn_scale(rope)


def _yarn_scale(rope: Rope) -> float:
    def log_scale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return log_scale(rope.mscale) / log_scale(rope.mscale_all_dim)
    return log_scale(1.0)
