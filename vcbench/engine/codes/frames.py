"""In what coordinates a quantised cache stores entries and codes keys.

A stored entry is what attention meets: queries are turned as keys are, results are turned back as values are. A coded
key is what becomes codes: it may be taken back to before its rotary embedding, which codes it in place of the stored
one and is done again on reading.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vcbench.engine.codes.rotation import fast_hadamard, hadamard
from vcbench.engine.kernels.cpu import matmul as kernel
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.rope import RopeTable

Kind = Literal["keys", "values"]
_NO_MATRIX = torch.empty((0, 0, 0))
_FEW_ROWS = 256
"""Up to so many rows, waking a second thread takes longer than the product."""


class Frame:
    """Entries are stored, and keys coded, as they are."""

    plain = True
    """Whether coded keys are the stored ones."""

    def turned(self, x: Tensor, kind: Kind) -> Tensor:
        """x: [..., D] as it is stored; queries are turned as keys."""
        return x

    def same_as(self, other: Frame) -> bool:
        """Whether entries are stored alike in both; False where that would have to be worked out."""
        return self is other or type(self) is type(other) is Frame

    def turned_back(self, x: Tensor, kind: Kind) -> Tensor:
        """The inverse of `turned`; results of attention are turned back as values."""
        return x

    def matrices(self) -> tuple[Tensor, Tensor]:
        """What `turned` and `turned_back` multiply each head by, as `kernels.cpu.matmul` takes it; empty if by nothing.

        Asked for where `plain`.
        """
        return _NO_MATRIX, _NO_MATRIX

    def coded_shape(self, shape: KVShape) -> tuple[int, int]:
        """Into how many vectors of what size a token's keys are cut for coding; Hk and D here."""
        return shape.n_kv_heads, shape.head_dim

    def coded(self, k: Tensor, layers: slice, start: int) -> Tensor:
        """Stored keys k: [L', Hk, n, D] of positions from `start` on as they are coded: [L', vectors, n, size]."""
        return k.float()

    def stored(self, x: Tensor, layer: int, start: int) -> Tensor:
        """The inverse of `coded` for one layer: [vectors, n, size] to [Hk, n, D], float32."""
        return x

    def tensors(self) -> list[Tensor]:
        """Every tensor held, but for the decoder's own rotary tables, which it has anyway."""
        return []


class Turned(Frame):
    """Keys and values turned by one orthogonal matrix, [D, D]: scores stay as they are and codes are never undone."""

    def __init__(self, rotation: Tensor) -> None:
        self._forth, self._back = blocked(rotation), blocked(rotation.mT)

    def turned(self, x: Tensor, kind: Kind) -> Tensor:
        return product(x, self._forth)

    def same_as(self, other: Frame) -> bool:
        return self is other or (isinstance(other, Turned) and torch.equal(self._forth, other._forth))

    def turned_back(self, x: Tensor, kind: Kind) -> Tensor:
        return product(x, self._back)

    def matrices(self) -> tuple[Tensor, Tensor]:
        return self._forth, self._back

    def tensors(self) -> list[Tensor]:
        return [self._forth, self._back]


class GroupedHeads(Frame):
    """RotateKV's (arXiv 2501.16383): pre-RoPE keys of `together` heads pass one Hadamard transform, all channels of the
    layer are then put in an order of the calibration's and cut into groups. Values are turned head by head.

    The embedding is taken off the stored keys in float32: exact but for rounding.
    """

    plain = False

    def __init__(self, rope: RopeTable, order: Tensor, *, together: int, group: int) -> None:
        """order: [L, Hk * D], for each coded channel the transformed one that it is; a permutation in each layer."""
        self.rope, self.together, self.group = rope, together, group
        self._order = order.to(torch.int32)
        self.origin = order.long().argsort(dim=1).to(torch.int32)
        """[L, Hk * D], for each transformed channel the coded one."""
        self._rotation = blocked(hadamard(2 * rope.cos.shape[1]).float().to(order.device))

    def turned(self, x: Tensor, kind: Kind) -> Tensor:
        return x if kind == "keys" else product(x, self._rotation)

    def same_as(self, other: Frame) -> bool:
        if not isinstance(other, GroupedHeads):
            return False
        alike = (self.rope, self.together, self.group) == (other.rope, other.together, other.group)
        return self is other or (alike and torch.equal(self._order, other._order))

    def turned_back(self, x: Tensor, kind: Kind) -> Tensor:
        return self.turned(x, kind)

    def coded_shape(self, shape: KVShape) -> tuple[int, int]:
        return shape.n_kv_heads * shape.head_dim // self.group, self.group

    def coded(self, k: Tensor, layers: slice, start: int) -> Tensor:
        channels = grouped_hadamard(self.rope.blocks.unrotated(k, start), self.together)
        order = self._order[layers].long()[:, None].expand(channels.shape)
        groups: Tensor = channels.gather(2, order).unflatten(2, (-1, self.group))
        return groups.transpose(1, 2)

    def stored(self, x: Tensor, layer: int, start: int) -> Tensor:
        channels = x.transpose(0, 1).flatten(1)[:, self.origin[layer].long()]
        size = 2 * self.rope.cos.shape[1]
        heads = channels.unflatten(1, (-1, size)).transpose(0, 1)
        plain = grouped_hadamard(heads, self.together).unflatten(1, (-1, size)).transpose(0, 1)
        return self.rope.blocks.rotated(plain, start)

    def tensors(self) -> list[Tensor]:
        return [self._order, self.origin, self._rotation]


def grouped_hadamard(k: Tensor, together: int) -> Tensor:
    """k: [..., Hk, n, D], each `together` heads of a token through one normalised Hadamard transform.

    Returns [..., n, Hk * D], float32. Its own inverse but for the layout.
    """
    tokens: Tensor = k.transpose(-2, -3).float().unflatten(-2, (-1, together))
    channels: Tensor = fast_hadamard(tokens.flatten(-2)).flatten(-2)
    return channels


def blocked(matrix: Tensor) -> Tensor:
    """A matrix [D, D] to multiply rows by, in the form of `kernels.cpu.matmul`: [blocks, D, 64]."""
    missing = -matrix.shape[0] % kernel.OUTPUTS
    padded = torch.nn.functional.pad(matrix, (0, 0, 0, missing))
    return padded.view(-1, kernel.OUTPUTS, matrix.shape[1]).transpose(1, 2).contiguous()


def product(x: Tensor, blocked: Tensor) -> Tensor:
    """x @ matrix^T, float32 inside; on CPU no row depends on the others."""
    rows = x.reshape(-1, x.shape[-1]).float()
    out = torch.empty_like(rows)
    if x.device.type == "cpu":
        bias = torch.empty(0)
        product = kernel.linear if len(rows) > _FEW_ROWS else kernel.linear_alone
        product(rows.contiguous().numpy(), blocked.numpy(), bias.numpy(), out.numpy())
    else:
        matrix = blocked.transpose(1, 2).flatten(0, 1)[: rows.shape[1]]
        out = (rows[:, None] * matrix).sum(-1)
    return out.view(x.shape).to(x.dtype)
