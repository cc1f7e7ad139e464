"""Draft caches that hold every token, most of them as packed codes and the newest ones exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np
import torch
from torch import Tensor

from vcbench.engine.cache import FullCache, Joined, KVCache
from vcbench.engine.code_batch import CodeBatch
from vcbench.engine.coders import Coder, UniformCoder
from vcbench.engine.exact_tokens import ExactTokens
from vcbench.engine.frames import Frame
from vcbench.engine.gpu import on_gpu
from vcbench.engine.kernels import framed
from vcbench.engine.kernels.attention import BLOCK
from vcbench.engine.kernels.simd import LANES
from vcbench.engine.kernels.tiles import level_table
from vcbench.engine.packing import BYTE, pack, unpack
from vcbench.engine.stores import ExactStore, KVShape, PagedStore, TensorStore, attend_chunks, make_store
from vcbench.engine.unrotated_batch import grouped_batch

_BULK_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How tokens become codes.

    Keys are grouped along `key_axis`: `channel` puts `key_group` consecutive tokens of one channel into a group,
    `token` a whole head of one token. Values: groups of `value_group` channels within a token. Keys are turned into
    codes `key_flush` tokens at a time; the last `value_residual` values stay exact.
    """

    key_bits: int
    value_bits: int
    key_axis: Literal["channel", "token"]
    key_group: int
    value_group: int
    symmetric: bool
    key_flush: int = 1
    value_residual: int = 0

    @classmethod
    def per_token(cls, head_dim: int, *, key_bits: int, value_bits: int, symmetric: bool) -> Scheme:
        """One group for each head of a token, in keys and values alike; nothing stays exact."""
        return cls(
            key_bits=key_bits,
            value_bits=value_bits,
            key_axis="token",
            key_group=head_dim,
            value_group=head_dim,
            symmetric=symmetric,
        )

    def quantised_keys(self, committed: int) -> int:
        """Tokens whose keys are codes, of `committed` tokens."""
        return committed - committed % self.key_flush

    def quantised_values(self, committed: int) -> int:
        """Tokens whose values are codes."""
        return max(0, committed - self.value_residual)


class QuantisedCache(KVCache):
    """Codes for old tokens and exact pages for the rest, page 0 holding position `tail_start`.

    k_codes: [L, Hk, blocks, D, bytes], k_steps: [L, Hk, groups, D] (channel) or [L, Hk, blocks, 64] (token); for Hk and
    D what the frame codes keys as. v_codes: [L, Hk, blocks, 64, bytes], v_steps: [L, Hk, blocks * 64, groups]. Only
    committed tokens become codes.
    """

    def __init__(self, shape: KVShape, scheme: Scheme, coder: Coder | None = None, frame: Frame | None = None) -> None:
        """The coder's bits are the scheme's; a uniform one if not given."""
        super().__init__(shape)
        self.scheme = scheme
        self.coder = coder or UniformCoder(scheme.key_bits, scheme.value_bits, symmetric=scheme.symmetric)
        self.frame = frame or Frame()
        self.exact = ExactTokens.none(shape)
        self.width = -(-shape.head_dim // LANES) * LANES
        self.tail: ExactStore = make_store(shape)
        self.tail_start = self.keys_done = self.values_done = 0
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

    @classmethod
    def of_prompt(
        cls,
        full: FullCache,
        scheme: Scheme,
        coder: Coder | None = None,
        frame: Frame | None = None,
        exact: Sequence[Tensor] | None = None,
    ) -> QuantisedCache:
        """Everything that a full cache has committed.

        exact: for each layer the positions, ascending int64, whose entries stay exact beside their codes.
        """
        cache = cls(full.shape, scheme, coder, frame)
        if exact is not None:
            cache.exact = ExactTokens.of_prompt(full, cache.frame, exact)
        tokens = full.committed
        keys, values = scheme.quantised_keys(tokens), scheme.quantised_values(tokens)
        cache._reserve_codes(keys, values)
        for layer in range(full.shape.n_layers):
            for start in range(0, tokens, _BULK_TOKENS):
                stop = min(tokens, start + _BULK_TOKENS)
                k, v = cache._turned(full.store, layer, start, stop)
                cache._encode_keys(slice(layer, layer + 1), start, k[None, :, : max(0, keys - start)])
                cache._encode_values(slice(layer, layer + 1), start, v[None, :, : max(0, values - start)])
        cache.keys_done, cache.values_done = keys, values
        cache.tail_start = min(keys, values) // BLOCK * BLOCK
        cache._copy_exact(full.store, cache.tail_start, tokens)
        cache.tokens = cache.committed = tokens
        return cache

    def _turned(self, source: ExactStore, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, stop - start, D] of a store of plain entries, as they are stored here."""
        k, v = source.read_range(layer, start, stop)
        return self.frame.turned(k, "keys"), self.frame.turned(v, "values")

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        entry = self.tokens - self.tail_start
        self.tail.write(layer, entry, self.frame.turned(k, "keys"), self.frame.turned(v, "values"))

    def _copy_exact(self, source: ExactStore, start: int, stop: int) -> None:
        """Takes the exact entries of positions start .. stop - 1 from a store of plain ones."""
        for layer in range(self.shape.n_layers):
            k, v = self._turned(source, layer, start, stop)
            self.tail.write(layer, start - self.tail_start, k.transpose(0, 1), v.transpose(0, 1))

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        if verified is not None:
            self._copy_exact(verified.store, self.committed, self.committed + count)
        super().commit(count)
        keys = self.scheme.quantised_keys(self.committed)
        values = self.scheme.quantised_values(self.committed)
        self._reserve_codes(keys, values)
        everything = slice(0, self.shape.n_layers)
        if keys > self.keys_done:
            self._encode_keys(everything, self.keys_done, self._from_tail(self.keys_done, keys, 0))
            self.keys_done = keys
        if values > self.values_done:
            self._encode_values(everything, self.values_done, self._from_tail(self.values_done, values, 1))
            self.values_done = values
        passed = (min(keys, values) - self.tail_start) // BLOCK * BLOCK
        if passed > 0:
            self.tail.drop_front(passed)
            self.tail_start += passed

    def _from_tail(self, start: int, stop: int, kind: int) -> Tensor:
        """Keys (0) or values (1) of exact tokens, all layers: [L, Hk, n, D]."""
        first, last = start - self.tail_start, stop - self.tail_start
        return torch.stack([self.tail.read_range(layer, first, last)[kind] for layer in range(self.shape.n_layers)])

    def horizon(self) -> int:
        """Tokens until the next key flush or the next value that leaves the residual."""
        s = self.scheme
        until_keys = s.key_flush - self.committed % s.key_flush
        until_values = max(1, s.value_residual - self.committed + 1)
        return min(until_keys, until_values)

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

    def tail_entry(self) -> int:
        """The tail's entry that the next token becomes."""
        return self.tokens - self.tail_start

    def join(self, parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
        if on_gpu(self.shape.device):
            from vcbench.engine.gpu_codes import join_codes

            return join_codes(parts)
        alike = [(cache, rows) for cache, rows in parts if isinstance(cache, QuantisedCache) and cache._reads_as(self)]
        if len(alike) < len(parts):
            return None
        for cache, rows in alike:
            cache.tail.reserve(cache.tail_entry() + rows)
        return CodeBatch(alike) if self.frame.plain else grouped_batch(alike)

    def _reads_as(self, other: QuantisedCache) -> bool:
        """Whether one kernel call can read both caches; not where this one is more than codes and exact pages."""
        alone = isinstance(self.tail, PagedStore) and (self._codes_alone() or not self.frame.plain)
        same = self.scheme == other.scheme and self.coder.same_as(other.coder) and self.frame.same_as(other.frame)
        return alone and same

    def attend(self, layer: int, q: Tensor) -> Tensor:
        joined = self.join([(self, q.shape[0])])
        if joined is not None:
            return joined.attend(layer, q)
        mixed = self._attend_turned(layer, self.frame.turned(q, "keys"))
        return self.frame.turned_back(mixed, "values")

    def _attend_turned(self, layer: int, q: Tensor) -> Tensor:
        if isinstance(self.tail, PagedStore):
            return self._attend_pages(self.tail, layer, q)
        last = self.tokens + q.shape[0]
        return attend_chunks(
            q, self.shape, self.tokens + 1, -(-last // TensorStore.CHUNK),
            lambda index: self._chunk(layer, index * TensorStore.CHUNK, last), TensorStore.CHUNK, TensorStore.ROW_TILE,
        )  # fmt: skip

    def _codes_alone(self) -> bool:
        """Whether layers are codes of stored keys and a tail, which have kernels of their own."""
        return self.frame.plain and not len(self.exact)

    def _attend_pages(self, tail: PagedStore, layer: int, q: Tensor) -> Tensor:
        n, heads = q.shape[0], self.shape.n_kv_heads
        out = torch.empty((n, heads, self.shape.n_heads // heads, self.shape.head_dim))
        keys, values = self._key_codes(layer), self._value_codes(layer)
        pages = framed.Pages(tail.table(), self.tail_start // BLOCK, *tail.layout(layer))
        rows, result = q.contiguous().numpy(), out.numpy()
        sketch, exact = self._sketch(layer), framed.ExactEntries(*(x.numpy() for x in self.exact.of_layer(layer)))
        framed.attend_framed(
            numba.get_num_threads(), rows, keys, values, sketch, exact, pages, self.tokens + 1, self.width, result
        )
        return out.view(n, self.shape.n_heads, self.shape.head_dim)

    def _sketch(self, layer: int) -> framed.Sketch:
        """What is kept of the keys besides their codes: nothing here."""
        return framed.NO_SKETCH

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

    def _chunk(self, layer: int, start: int, last: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, CHUNK, D] of positions from `start`, zeros from `last` on; the torch form of attention's input."""
        size = TensorStore.CHUNK
        k, v = self._dense(layer, start, min(start + size, last))
        missing = (0, 0, 0, size - k.shape[1])
        return torch.nn.functional.pad(k, missing), torch.nn.functional.pad(v, missing)

    def _dense(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, stop - start, D] in the model's precision; `start` a multiple of 64 and of the key group."""
        exact_from = max(start, self.tail_start)
        k, v = self.tail.read_range(layer, exact_from - self.tail_start, max(stop, exact_from) - self.tail_start)
        keys, values = self._decoded_keys(layer, start, stop), self._decoded_values(layer, start, stop)
        keys, values = keys.to(self.shape.dtype), values.to(self.shape.dtype)
        self.exact.put_into(layer, start, keys, values)
        joined = []
        for decoded, exact in ((keys, k), (values, v)):
            rest = exact[:, max(0, start + decoded.shape[1] - exact_from) :]
            joined.append(torch.cat([decoded, rest], dim=1)[:, : stop - start])
        return joined[0], joined[1]

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

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self._dense(layer, 0, self.tokens)
        k, v = self.frame.turned_back(k, "keys"), self.frame.turned_back(v, "values")
        return k, v, torch.arange(self.tokens).expand(self.shape.n_kv_heads, -1)

    def nbytes(self) -> dict[str, int]:
        return {
            "codes": self.k_codes.nbytes + self.v_codes.nbytes,
            "steps": self.k_steps.nbytes + self.v_steps.nbytes,
            "minima": self.k_minima.nbytes + self.v_minima.nbytes,
            "exact": sum(tensor.nbytes for tensor in self.exact.tensors()),
            "tables": sum(tensor.nbytes for tensor in [*self.coder.tensors(), *self.frame.tensors()]),
            "tail": self.tail.nbytes(),
        }


def grown(tensor: Tensor, rows: int) -> Tensor:
    """The tensor with dimension 2 grown to `rows`, new rows zero."""
    missing = rows - tensor.shape[2]
    if missing <= 0:
        return tensor
    return torch.cat([tensor, tensor.new_zeros((*tensor.shape[:2], missing, *tensor.shape[3:]))], dim=2)


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
