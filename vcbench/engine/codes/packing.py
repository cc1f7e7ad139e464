"""Uniform quantisation and packed codes, in torch: how codes are made, and the reference for how they are read.

U(b): with m and M the extremes of a group, step = (M - m) / (2**b - 1), code = round((x - m) / step), ties to even;
m and step are rounded to float16 first, since that is how they are stored. Symmetric: step = max|x| / (2**(b-1) - 1),
code = round(x / step) + 2**(b-1).
"""

from __future__ import annotations

import torch
from torch import Tensor

BYTE = 8
HALF_MAX = 65504.0


def quantise(x: Tensor, bits: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes (int32, x's shape), steps and minima (float16, without the last dimension) of groups x[..., group].

    Minima are empty when symmetric. A constant group gets code 0 and is reproduced up to the rounding of its minimum.
    """
    levels = (1 << bits) - 1
    if symmetric:
        half = 1 << (bits - 1)
        step = (x.abs().amax(-1) / (half - 1)).clamp(max=HALF_MAX).half()
        codes = torch.round(x / _safe(step)) + half
        return codes.clamp(1, levels).int(), step, step.new_empty(0)
    low = x.amin(-1).clamp(-HALF_MAX, HALF_MAX).half()
    step = ((x.amax(-1) - low.float()).clamp(min=0) / levels).clamp(max=HALF_MAX).half()
    codes = torch.round((x - low.float().unsqueeze(-1)) / _safe(step))
    return codes.clamp(0, levels).int(), step, low


def quantise_clipped(x: Tensor, bits: int, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """As `quantise`, not symmetric, over `clip` times each extreme, so that values beyond saturate.

    The minimum is a whole number of steps, as if a code stood for zero (RotateKV). A constant group stays what it is.
    """
    levels = (1 << bits) - 1
    low, high = x.amin(-1), x.amax(-1)
    step = ((high - low) * clip / levels).clamp(max=HALF_MAX).half()
    whole = torch.round(low * clip / _safe(step)[..., 0]) * step.float()
    minimum = torch.where(step == 0, low, whole).clamp(-HALF_MAX, HALF_MAX).half()
    codes = torch.round((x - minimum.float().unsqueeze(-1)) / _safe(step))
    return codes.clamp(0, levels).int(), step, minimum


def _safe(step: Tensor) -> Tensor:
    """Steps as float32 with infinity for 0, so that every code of a constant group is the offset's."""
    wide = step.float().unsqueeze(-1)
    return torch.where(wide == 0, torch.inf, wide)


def dequantise(codes: Tensor, steps: Tensor, minima: Tensor, bits: int, *, symmetric: bool) -> Tensor:
    """The float32 values of codes[..., group]."""
    wide = steps.float().unsqueeze(-1)
    offset = -float(1 << (bits - 1)) * wide if symmetric else minima.float().unsqueeze(-1)
    return torch.addcmul(offset, codes.float(), wide)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Bytes of codes[..., n], n * bits a multiple of 8; of W bytes, code i is in byte i mod W at bits * (i // W).

    3 bits are two planes: the bytes of the codes' lower 2 bits, then those of the upper ones.
    """
    if bits == 3:
        return torch.cat([pack(codes & 3, 2), pack(codes >> 2, 1)], dim=-1)
    slots = BYTE // bits
    spread = codes.unflatten(-1, (slots, -1))
    shifts = torch.arange(slots, device=codes.device, dtype=codes.dtype) * bits
    packed: Tensor = (spread << shifts[:, None]).sum(-2).to(torch.uint8)
    return packed


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse of `pack`, int32."""
    if bits == 3:
        low, high = packed.split([packed.shape[-1] // 3 * 2, packed.shape[-1] // 3], dim=-1)
        return unpack(low, 2) | unpack(high, 1) << 2
    shifts = torch.arange(BYTE // bits, device=packed.device, dtype=torch.int32) * bits
    spread = (packed.int().unsqueeze(-2) >> shifts[:, None]) & ((1 << bits) - 1)
    return spread.flatten(-2)
