"""Random rotations, made once from a seed."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor

RotationKind = Literal["hadamard", "qr"]
SIGN_ROUNDS = 2


@cache
def random_rotation(kind: RotationKind, size: int, seed: int) -> Tensor:
    """An orthogonal matrix [size, size], float32.

    hadamard: twice random signs and a Hadamard transform; without the signs a nearly constant vector would become one
    spike, which no scalar quantiser takes well. qr: Haar-random, for sizes that are no power of two.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "qr":
        drawn = torch.randn((size, size), generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(drawn)
        haar: Tensor = q * r.diagonal().sign()
        return haar.float()
    rotation = torch.eye(size, dtype=torch.float64)
    for _ in range(SIGN_ROUNDS):
        signs = torch.randint(0, 2, (size,), generator=generator).double() * 2 - 1
        rotation = torch.mm(hadamard(size), signs[:, None] * rotation)
    return rotation.float()


def hadamard(size: int) -> Tensor:
    """The normalised Sylvester-Hadamard matrix, float64; `size` a power of two."""
    matrix = torch.ones((1, 1), dtype=torch.float64)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.div(size**0.5)


def is_power_of_two(size: int) -> bool:
    """Whether a Hadamard matrix of this size exists here."""
    return size > 0 and size & (size - 1) == 0


def fast_hadamard(x: Tensor) -> Tensor:
    """x: [..., n] times the matrix `hadamard(n)`, its own inverse; in float32, then x's precision again.

    Additions of whole rows only, so that no row depends on the others. Cost: n log2 n a row.
    """
    size, wide = x.shape[-1], x.float()
    span = 1
    while span < size:
        a, b = wide.unflatten(-1, (-1, 2, span)).unbind(-2)
        wide = torch.stack([a + b, a - b], dim=-2).flatten(-3)
        span *= 2
    return wide.mul(size**-0.5).to(x.dtype)
