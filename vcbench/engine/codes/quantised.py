"""Draft caches that hold every token, most of them as packed codes and the newest ones exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vcbench.engine.codes.coded_cache import CodedCache
from vcbench.engine.codes.coders import Coder
from vcbench.engine.codes.exact_tokens import ExactTokens
from vcbench.engine.codes.frames import Frame
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kernels.cpu.codes import tiled_attention as tiled
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.make import make_store
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.kv.store import ExactStore

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
                k, v = cache._rotated(full.store, layer, start, stop)
                cache._encode_keys(slice(layer, layer + 1), start, k[None, :, : max(0, keys - start)])
                cache._encode_values(slice(layer, layer + 1), start, v[None, :, : max(0, values - start)])
        cache.keys_done, cache.values_done = keys, values
        cache.tail_start = min(keys, values) // BLOCK * BLOCK
        cache._copy_exact(full.store, cache.tail_start, tokens)
        cache.tokens = cache.committed = tokens
        return cache

    def _rotated(self, source: ExactStore, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, stop - start, D] of a store of plain entries, as they are stored here."""
        k, v = source.read_range(layer, start, stop)
        return self.frame.rotated(k, "keys"), self.frame.rotated(v, "values")

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        entry = self.tokens - self.tail_start
        self.tail.write(layer, entry, self.frame.rotated(k, "keys"), self.frame.rotated(v, "values"))

    def _copy_exact(self, source: ExactStore, start: int, stop: int) -> None:
        """Takes the exact entries of positions start .. stop - 1 from a store of plain ones."""
        for layer in range(self.shape.n_layers):
            k, v = self._rotated(source, layer, start, stop)
            self.tail.write(layer, start - self.tail_start, k.transpose(0, 1), v.transpose(0, 1))

    def uncommitted(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        first = self.committed - self.tail_start
        k, v = self.tail.read_range(layer, first, first + count)
        return self.frame.rotated_back(k, "keys"), self.frame.rotated_back(v, "values")

    def settle(self, count: int, queries: QueryLog | None) -> None:
        keys = self.scheme.quantised_keys(self.tokens)
        values = self.scheme.quantised_values(self.tokens)
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

    def sketch_codes(self, layer: int) -> tiled.Sketch:
        """What is held of what the key codes have missed: nothing here."""
        return tiled.NO_SKETCH

    def dense(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
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
        k, v = self.dense(layer, 0, self.tokens)
        k, v = self.frame.rotated_back(k, "keys"), self.frame.rotated_back(v, "values")
        return k, v, torch.arange(self.tokens).expand(self.shape.n_kv_heads, -1)

    def nbytes(self) -> dict[str, int]:
        exact = sum(tensor.nbytes for tensor in self.exact.tensors())
        return {**self.code_bytes(), "exact": exact, "tail": self.tail.nbytes()}
