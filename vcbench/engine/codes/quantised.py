"""Draft caches that hold every token, most of them as packed codes and the newest ones exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import torch
from torch import Tensor

from vcbench.engine.attention.cpu_codes import CodeBatch
from vcbench.engine.attention.cpu_prerope import grouped_batch
from vcbench.engine.attention.device import on_gpu
from vcbench.engine.codes.coded_cache import CodedCache
from vcbench.engine.codes.coders import Coder
from vcbench.engine.codes.exact_tokens import ExactTokens
from vcbench.engine.codes.frames import Frame
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kernels.cpu.codes import tiled_attention as framed
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kv.cache import FullCache, Joined, KVCache
from vcbench.engine.kv.stores import ExactStore, KVShape, PagedStore, TensorStore, attend_chunks, make_store

_BULK_TOKENS = 1024


class QuantisedCache(CodedCache):
    """Codes for old tokens and exact pages for the rest, page 0 holding position `tail_start`.

    Only committed tokens become codes.
    """

    def __init__(self, shape: KVShape, scheme: Scheme, coder: Coder | None = None, frame: Frame | None = None) -> None:
        super().__init__(shape, scheme, coder, frame)
        self.exact = ExactTokens.none(shape)
        self.tail: ExactStore = make_store(shape)
        self.tail_start = 0

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

    def tail_entry(self) -> int:
        """The tail's entry that the next token becomes."""
        return self.tokens - self.tail_start

    def join(self, parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
        if on_gpu(self.shape.device):
            from vcbench.engine.attention.gpu_codes import join_codes

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

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self._dense(layer, 0, self.tokens)
        k, v = self.frame.turned_back(k, "keys"), self.frame.turned_back(v, "values")
        return k, v, torch.arange(self.tokens).expand(self.shape.n_kv_heads, -1)

    def nbytes(self) -> dict[str, int]:
        exact = sum(tensor.nbytes for tensor in self.exact.tensors())
        return {**self.code_bytes(), "exact": exact, "tail": self.tail.nbytes()}
