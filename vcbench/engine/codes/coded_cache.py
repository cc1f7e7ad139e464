"""Packed codes of a cache's old tokens: how they are held, made and read back."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vcbench.engine.codes.coders import Coder, UniformCoder
from vcbench.engine.codes.frames import Frame
from vcbench.engine.codes.packing import BYTE, pack, unpack
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kernels.cpu.codes import tiled_attention as framed
from vcbench.engine.kernels.cpu.codes.tiles import level_table
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.simd import LANES
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.stores import KVShape


class CodedCache(KVCache):
    """A cache whose first `keys_done` keys and `values_done` values are codes.

    k_codes: [L, Hk, blocks, D, bytes], k_steps: [L, Hk, groups, D] (channel) or [L, Hk, blocks, 64] (token); for Hk and
    D what the frame codes keys as. v_codes: [L, Hk, blocks, 64, bytes], v_steps: [L, Hk, blocks * 64, groups].
    """

    constants: ClassVar[tuple[str, ...] | None] = ("scheme", "coder", "frame")

    def __init__(self, shape: KVShape, scheme: Scheme, coder: Coder | None, frame: Frame | None) -> None:
        """The coder's bits are the scheme's; a uniform one if not given."""
        super().__init__(shape)
        self.scheme = scheme
        self.coder = coder or UniformCoder(scheme.key_bits, scheme.value_bits, symmetric=scheme.symmetric)
        self.frame = frame or Frame()
        self.width = -(-shape.head_dim // LANES) * LANES
        self.keys_done = self.values_done = 0
        self._allocate_codes()

    def _allocate_codes(self) -> None:
        s, (vectors, size) = self.scheme, self.frame.coded_shape(self.shape)

        def empty(heads: int, *inner: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((self.shape.n_layers, heads, 0, *inner), dtype=dtype, device=self.shape.device)

        key_bytes = BLOCK * s.key_bits // BYTE
        value_bytes = self.width * s.value_bits // BYTE
        step_columns = size if s.key_axis == "channel" else BLOCK
        step_columns *= self.coder.scaled
        heads = self.shape.n_kv_heads
        self.k_codes = empty(vectors, size, key_bytes, dtype=torch.uint8)
        self.v_codes = empty(heads, BLOCK, value_bytes, dtype=torch.uint8)
        self.k_steps = empty(vectors, step_columns, dtype=torch.float16)
        self.v_steps = empty(heads, -(-self.shape.head_dim // s.value_group) * self.coder.scaled, dtype=torch.float16)
        self.k_minima = empty(vectors, 0 if s.symmetric else step_columns, dtype=torch.float16)
        self.v_minima = empty(heads, 0 if s.symmetric else self.v_steps.shape[3], dtype=torch.float16)

    def _reserve_codes(self, keys: int, values: int) -> None:
        s = self.scheme
        key_blocks, value_blocks = -(-keys // BLOCK), -(-values // BLOCK)
        key_rows = -(-keys // s.key_group) if s.key_axis == "channel" else key_blocks
        self.k_codes = grown(self.k_codes, key_blocks)
        self.k_steps, self.k_minima = grown(self.k_steps, key_rows), grown(self.k_minima, key_rows)
        self.v_codes = grown(self.v_codes, value_blocks)
        rows = value_blocks * BLOCK
        self.v_steps, self.v_minima = grown(self.v_steps, rows), grown(self.v_minima, rows)

    def _encode_keys(self, layers: slice, start: int, k: Tensor) -> None:
        """Codes of stored k: [L', Hk, n, D] at positions from `start` on; with channel groups, whole groups only."""
        n = k.shape[2]
        if n == 0:
            return
        s, k = self.scheme, self.frame.coded(k, layers, start)
        if s.key_axis == "channel":
            grouped = k.transpose(2, 3).unflatten(3, (n // s.key_group, s.key_group))
            codes, steps, minima = self.coder.encode(grouped, "keys")
            codes, row = codes.flatten(3), slice(start // s.key_group, (start + n) // s.key_group)
            self.k_steps[layers, :, row] = steps.transpose(2, 3)
            if not s.symmetric:
                self.k_minima[layers, :, row] = minima.transpose(2, 3)
        else:
            codes, steps, minima = self.coder.encode(k, "keys")
            codes, span = codes.transpose(2, 3), slice(start, start + n)
            if self.coder.scaled:
                self.k_steps.flatten(2)[layers, :, span] = steps
            if not s.symmetric:
                self.k_minima.flatten(2)[layers, :, span] = minima
        put_by_channel(self.k_codes, layers, start, codes, s.key_bits)

    def _encode_values(self, layers: slice, start: int, v: Tensor) -> None:
        """Codes of v: [L', Hk, n, D] at positions from `start` on."""
        n = v.shape[2]
        if n == 0:
            return
        s = self.scheme
        groups = v.float().unflatten(3, (-1, s.value_group))
        codes, steps, minima = self.coder.encode(groups, "values")
        if self.coder.scaled:
            self.v_steps[layers, :, start : start + n] = steps
        if not s.symmetric:
            self.v_minima[layers, :, start : start + n] = minima
        padded = torch.nn.functional.pad(codes.flatten(3), (0, self.width - v.shape[3]))
        self.v_codes.flatten(2, 3)[layers, :, start : start + n] = pack(padded, s.value_bits)

    def _key_codes(self, layer: int) -> framed.KeyCodes:
        s = self.scheme
        form, levels = level_table(self.coder.levels("keys").numpy(), s.key_bits, s.symmetric)
        return framed.KeyCodes(
            codes=self.k_codes[layer].numpy(),
            steps=half_bits(self.k_steps[layer]),
            minima=half_bits(self.k_minima[layer]),
            form=form,
            levels=levels,
            by_channel=s.key_axis == "channel",
            group=s.key_group,
            done=self.keys_done,
        )

    def _value_codes(self, layer: int) -> framed.ValueCodes:
        s = self.scheme
        form, levels = level_table(self.coder.levels("values").numpy(), s.value_bits, s.symmetric)
        return framed.ValueCodes(
            codes=self.v_codes[layer].numpy(),
            steps=half_bits(self.v_steps[layer].flatten(1)),
            minima=half_bits(self.v_minima[layer].flatten(1)),
            form=form,
            levels=levels,
            group=s.value_group,
            groups=max(1, self.v_steps.shape[3]),
            done=self.values_done,
        )

    def _decoded_keys(self, layer: int, start: int, stop: int) -> Tensor:
        stop = min(stop, self.keys_done)
        if stop <= start:
            return self.k_steps.new_empty((self.shape.n_kv_heads, 0, self.shape.head_dim))
        return self.frame.stored(self._decoded_coded(layer, start, stop), layer, start)

    def _decoded_coded(self, layer: int, start: int, stop: int) -> Tensor:
        """What the key codes of these positions stand for: [vectors, stop - start, size], float32."""
        s = self.scheme
        codes = by_token(self.k_codes[layer], start, stop, s.key_bits)
        if s.key_axis == "token":
            steps, minima = (t[layer].flatten(1)[:, start:stop] for t in (self.k_steps, self.k_minima))
            return self.coder.decode(codes, steps, minima, "keys")
        groups = codes.transpose(1, 2).unflatten(2, (-1, s.key_group))
        rows = slice(start // s.key_group, stop // s.key_group)
        steps, minima = (t[layer, :, rows].transpose(1, 2) for t in (self.k_steps, self.k_minima))
        return self.coder.decode(groups, steps, minima, "keys").flatten(2).transpose(1, 2)

    def _decoded_values(self, layer: int, start: int, stop: int) -> Tensor:
        s, stop = self.scheme, min(stop, self.values_done)
        if stop <= start:
            return self.v_steps.new_empty((self.shape.n_kv_heads, 0, self.shape.head_dim))
        codes = unpack(self.v_codes[layer].flatten(1, 2)[:, start:stop], s.value_bits)
        groups = codes[..., : self.shape.head_dim].unflatten(2, (-1, s.value_group))
        steps, minima = (t[layer, :, start:stop] for t in (self.v_steps, self.v_minima))
        return self.coder.decode(groups, steps, minima, "values").flatten(2)

    def code_bytes(self) -> dict[str, int]:
        """Bytes of codes and of what is needed to read them."""
        return {
            "codes": self.k_codes.nbytes + self.v_codes.nbytes,
            "steps": self.k_steps.nbytes + self.v_steps.nbytes,
            "minima": self.k_minima.nbytes + self.v_minima.nbytes,
            "tables": sum(tensor.nbytes for tensor in [*self.coder.tensors(), *self.frame.tensors()]),
        }


def grown(tensor: Tensor, rows: int, dimension: int = 2) -> Tensor:
    """The tensor with one dimension grown to `rows`, new rows zero; as it is if it has as many."""
    if tensor.shape[dimension] >= rows:
        return tensor
    missing = list(tensor.shape)
    missing[dimension] = rows - tensor.shape[dimension]
    return torch.cat([tensor, tensor.new_zeros(missing)], dim=dimension)


def put_by_channel(target: Tensor, layers: slice, start: int, codes: Tensor, bits: int) -> None:
    """Packs codes: [L', heads, D, n] of tokens from `start` on, not set before, into [L, heads, blocks, D, bytes]."""
    before = start % BLOCK
    after = -(before + codes.shape[3]) % BLOCK
    blocks = torch.nn.functional.pad(codes, (before, after)).unflatten(3, (-1, BLOCK))
    packed, first = pack(blocks.transpose(2, 3), bits), start // BLOCK
    target[layers, :, first : first + packed.shape[2]] |= packed


def by_token(packed: Tensor, start: int, stop: int, bits: int) -> Tensor:
    """Codes [heads, stop - start, D] of packed: [heads, blocks, D, bytes]; `start` a multiple of 64."""
    codes = unpack(packed[:, start // BLOCK : -(-stop // BLOCK)], bits)
    return codes.transpose(2, 3).flatten(1, 2)[:, : stop - start]


def half_bits(x: Tensor) -> Any:
    """A float16 tensor as the kernels take it."""
    return x.numpy().view(np.uint16)
