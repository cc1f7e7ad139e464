"""Draft caches of codebook codes (KVQuant): pre-RoPE keys, sparse outliers, exact first tokens and an exact tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vcbench.engine.attention.cpu_codebook import nonuniform_batch
from vcbench.engine.attention.device import on_gpu
from vcbench.engine.codes.codebook import TIE_SLACK, Codebooks, as_stored, channel_limits, value_ranges
from vcbench.engine.codes.coded_cache import grown
from vcbench.engine.codes.exact_tokens import ExactTokens
from vcbench.engine.codes.outliers import Outliers
from vcbench.engine.codes.packing import BYTE, pack, unpack
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.simd import LANES
from vcbench.engine.kv.cache import FullCache, Joined, KVCache
from vcbench.engine.kv.stores import (
    ExactStore,
    KVShape,
    PagedStore,
    TensorStore,
    attend_chunks,
    make_store,
)
from vcbench.engine.rope import RopeTable

_BULK_TOKENS = 1024


class NonuniformCache(KVCache):
    """Codes for every complete block of 64 committed tokens; the rest in exact pages, page 0 holding position `done`.

    A block's exact page would be held until the block is complete in any case, so nothing is coded before.
    k_codes: [L, Hk, blocks, D, bytes]; v_codes: [L, Hk, blocks, 64, bytes]; v_offsets, v_ranges: [L, blocks * 64]
    float16, of a token's values over all heads; k_offsets, k_ranges: [L, Hk, D] float16. The first `sinks` tokens
    are held exactly beside their codes. Keys are coded as they were before their rotary embedding, which is done again
    on reading with the decoder's own tables.
    """

    constants: ClassVar[tuple[str, ...] | None] = ("books", "rope", "k_offsets", "k_ranges")

    def __init__(self, shape: KVShape, books: Codebooks, rope: RopeTable, sinks: int) -> None:
        super().__init__(shape)
        self.books, self.sinks, self.rope = books, sinks, rope
        self.width = -(-shape.head_dim // LANES) * LANES
        self.tail: ExactStore = make_store(shape)
        self.done = 0
        layers, heads, device = shape.n_layers, shape.n_kv_heads, shape.device
        key_bytes, value_bytes = BLOCK * books.bits // BYTE, self.width * books.bits // BYTE
        self.k_codes = torch.zeros((layers, heads, 0, shape.head_dim, key_bytes), dtype=torch.uint8, device=device)
        self.v_codes = torch.zeros((layers, heads, 0, BLOCK, value_bytes), dtype=torch.uint8, device=device)
        self.v_offsets = torch.zeros((layers, 0), dtype=torch.float16, device=device)
        self.v_ranges = torch.zeros_like(self.v_offsets)
        self.k_outliers, self.v_outliers = Outliers(shape), Outliers(shape)
        self.first = ExactTokens.none(shape)
        self.k_offsets = self.k_ranges = torch.zeros(0, dtype=torch.float16, device=device)
        if books.offsets is not None and books.ranges is not None:
            self.k_offsets, self.k_ranges = books.offsets, books.ranges

    @classmethod
    def of_prompt(cls, full: FullCache, books: Codebooks, rope: RopeTable, sinks: int) -> NonuniformCache:
        """Everything that a full cache has committed."""
        cache = cls(full.shape, books, rope, sinks)
        tokens = full.committed
        cache._encode(full.store, 0, tokens // BLOCK * BLOCK)
        cache._copy_exact(full.store, cache.done, tokens)
        cache.tokens = cache.committed = tokens
        return cache

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.tail.write(layer, self.tokens - self.done, k, v)

    def _copy_exact(self, source: ExactStore, start: int, stop: int) -> None:
        """Takes the entries of positions start .. stop - 1 from a store of all."""
        self.tail.copy_from(source, start, start - self.done, stop - start)

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        if verified is not None:
            self._copy_exact(verified.store, self.committed, self.committed + count)
        super().commit(count)
        complete = self.committed // BLOCK * BLOCK
        if complete > self.done:
            dropped = complete - self.done
            self._encode(self.tail, self.done, complete)
            self.tail.drop_front(dropped)

    def horizon(self) -> int:
        return BLOCK - self.committed % BLOCK

    def _encode(self, source: ExactStore, start: int, stop: int) -> None:
        """Codes of positions start .. stop - 1, whole blocks; entry 0 of the source is position `done`."""
        if stop == start:
            return
        if not self.k_ranges.numel():
            self._find_ranges(source, start, stop)
        self.k_codes, self.v_codes = (grown(x, stop // BLOCK) for x in (self.k_codes, self.v_codes))
        self.v_offsets, self.v_ranges = (grown(x, stop, 1) for x in (self.v_offsets, self.v_ranges))
        if start == 0:
            self.first = ExactTokens.first_of(self.shape, source, self.sinks)
        for layer in range(self.shape.n_layers):
            for at in range(start, stop, _BULK_TOKENS):
                k, v = source.read_range(layer, at - self.done, min(stop, at + _BULK_TOKENS) - self.done)
                self._encode_keys(layer, at, self.rope.blocks.unrotated(k, at))
                self._encode_values(layer, at, v.float())
        self.done = stop

    def _find_ranges(self, source: ExactStore, start: int, stop: int) -> None:
        """Ranges of key channels from the tokens that are coded first; they stay what they are."""
        found = []
        skipped = self.sinks if start == 0 and self.sinks < stop else 0
        for layer in range(self.shape.n_layers):
            k, _ = source.read_range(layer, start - self.done + skipped, stop - self.done)
            keys = self.rope.blocks.unrotated(k, start + skipped).transpose(0, 1).flatten(1)
            low, high = channel_limits(keys.sort(dim=0).values, self.books.outliers)
            found.append(as_stored((high + low) / 2, (high - low) / 2))
        size = (self.shape.n_kv_heads, self.shape.head_dim)
        self.k_offsets, self.k_ranges = (torch.stack(list(x)).unflatten(1, size) for x in zip(*found, strict=True))

    def _encode_keys(self, layer: int, start: int, k: Tensor) -> None:
        """k: [Hk, n, D] float32 before the rotary embedding, whole blocks."""
        scaled = (k - self.k_offsets[layer, :, None].float()) / self.k_ranges[layer, :, None].float()
        codes = self.books.codes(scaled, "keys", layer)
        first, blocks = start // BLOCK, k.shape[1] // BLOCK
        by_channel = codes.unflatten(1, (blocks, BLOCK)).transpose(2, 3)
        self.k_codes[layer, :, first : first + blocks] = pack(by_channel, self.books.bits)
        if self.books.outliers:
            marked = scaled.abs() > 1 + TIE_SLACK
            marked[:, : max(0, self.sinks - start)] = False
            missed = k - self._key_table(layer)[:, None].expand(*k.shape, -1).gather(3, codes[..., None].long())[..., 0]
            tiles, marks = (x.unflatten(1, (blocks, BLOCK)).permute(1, 0, 3, 2).flatten(2) for x in (missed, marked))
            self.k_outliers.append(layer, tiles, marks)

    def _encode_values(self, layer: int, start: int, v: Tensor) -> None:
        """v: [Hk, n, D] float32, whole blocks."""
        heads, n, size = v.shape
        tokens = v.transpose(0, 1).flatten(1)
        offsets, ranges, marked = value_ranges(tokens, self.books.outliers)
        offsets, ranges = as_stored(offsets, ranges)
        span = slice(start, start + n)
        self.v_offsets[layer, span], self.v_ranges[layer, span] = offsets, ranges
        scaled = (tokens - offsets[:, None].float()) / ranges[:, None].float()
        codes = self.books.codes(scaled, "values", layer)
        by_head = codes.unflatten(1, (heads, size)).transpose(0, 1)
        padded = torch.nn.functional.pad(by_head, (0, self.width - size))
        self.v_codes.flatten(2, 3)[layer, :, span] = pack(padded, self.books.bits)
        if self.books.outliers:
            marked[: max(0, self.sinks - start)] = False
            decoded = self.books.decoded["values"][layer][codes.long()]
            missed = tokens - (decoded * ranges[:, None].float() + offsets[:, None].float())
            tiles = missed.unflatten(1, (heads, size)).unflatten(0, (-1, BLOCK)).transpose(1, 2).flatten(2)
            marks = marked.unflatten(1, (heads, size)).unflatten(0, (-1, BLOCK)).transpose(1, 2).flatten(2)
            self.v_outliers.append(layer, tiles, marks)

    def join(self, parts: Sequence[tuple[KVCache, int]]) -> Joined | None:
        if on_gpu(self.shape.device):
            from vcbench.engine.attention.gpu_codebook import join_nonuniform

            return join_nonuniform(parts)
        alike = [(cache, rows) for cache, rows in parts if isinstance(cache, NonuniformCache) and cache._reads_as(self)]
        if len(alike) < len(parts):
            return None
        for cache, rows in alike:
            cache.tail.reserve(cache.tokens - cache.done + rows)
        return nonuniform_batch(alike)

    def page_tail(self) -> PagedStore:
        """The exact tail of a cache on CPU."""
        assert isinstance(self.tail, PagedStore)
        return self.tail

    def _reads_as(self, other: NonuniformCache) -> bool:
        """Whether one kernel call can read both caches; each may have key ranges, outliers and first tokens its own."""
        paged = isinstance(self.tail, PagedStore) and isinstance(other.tail, PagedStore)
        return paged and self.rope is other.rope and self.books.same_as(other.books)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        joined = self.join([(self, q.shape[0])])
        if joined is not None:
            return joined.attend(layer, q)
        last = self.tokens + q.shape[0]
        return attend_chunks(
            q, self.shape, self.tokens + 1, -(-last // TensorStore.CHUNK),
            lambda index: self._chunk(layer, index * TensorStore.CHUNK, last), TensorStore.CHUNK, TensorStore.ROW_TILE,
        )  # fmt: skip

    def _key_table(self, layer: int) -> Tensor:
        """What each key channel's codes stand for: [Hk, D, 2 ** bits] float32."""
        offsets, ranges = self.k_offsets[layer, ..., None].float(), self.k_ranges[layer, ..., None].float()
        return self.books.decoded["keys"][layer] * ranges + offsets

    def _chunk(self, layer: int, start: int, last: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, CHUNK, D] of positions from `start`, zeros from `last` on; the torch form of attention's input."""
        k, v = self._dense(layer, start, min(start + TensorStore.CHUNK, last))
        missing = (0, 0, 0, TensorStore.CHUNK - k.shape[1])
        return torch.nn.functional.pad(k, missing), torch.nn.functional.pad(v, missing)

    def _dense(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """k, v: [Hk, stop - start, D] as attention sees them; `start` a multiple of 64."""
        coded = max(start, min(stop, self.done))
        blocks = slice(start // BLOCK, -(-coded // BLOCK))
        exact = self.tail.read_range(layer, max(coded, self.done) - self.done, max(stop, self.done) - self.done)
        if blocks.stop <= blocks.start:
            return exact
        decoded = self._decoded_keys(layer, blocks), self._decoded_values(layer, blocks)
        k, v = (part.to(self.shape.dtype)[:, : coded - start] for part in decoded)
        self.first.put_into(layer, start, k, v)
        return torch.cat([k, exact[0]], dim=1), torch.cat([v, exact[1]], dim=1)

    def _decoded_keys(self, layer: int, blocks: slice) -> Tensor:
        """[Hk, tokens, D] float32 at their positions."""
        codes = unpack(self.k_codes[layer, :, blocks], self.books.bits).long()
        channels = self._key_table(layer)[:, None].expand(*codes.shape[:3], -1).gather(3, codes)
        tiles = channels.transpose(0, 1).flatten(2).contiguous()
        self.k_outliers.add_to(layer, blocks.start, tiles)
        k = tiles.unflatten(2, (-1, BLOCK)).transpose(2, 3).transpose(0, 1).flatten(1, 2)
        return self.rope.blocks.rotated(k, blocks.start * BLOCK)

    def _decoded_values(self, layer: int, blocks: slice) -> Tensor:
        codes = unpack(self.v_codes[layer, :, blocks], self.books.bits)[..., : self.shape.head_dim]
        span = slice(blocks.start * BLOCK, blocks.stop * BLOCK)
        ranges, offsets = (x[layer, span].float().view(-1, BLOCK, 1) for x in (self.v_ranges, self.v_offsets))
        tokens = self.books.decoded["values"][layer][codes] * ranges + offsets
        tiles = tokens.transpose(0, 1).flatten(2).contiguous()
        self.v_outliers.add_to(layer, blocks.start, tiles)
        v: Tensor = tiles.unflatten(2, (BLOCK, -1)).transpose(0, 1).flatten(1, 2)
        return v

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self._dense(layer, 0, self.tokens)
        return k, v, torch.arange(self.tokens).expand(self.shape.n_kv_heads, -1)

    def nbytes(self) -> dict[str, int]:
        return {
            "codes": self.k_codes.nbytes + self.v_codes.nbytes,
            "ranges": self.v_offsets.nbytes + self.v_ranges.nbytes,
            "outliers": sum(x.nbytes for part in (self.k_outliers, self.v_outliers) for x in part.tensors()),
            "first": sum(x.nbytes for x in self.first.tensors()),
            "tables": sum(x.nbytes for x in (self.k_offsets, self.k_ranges, *self.books.tensors())),
            "tail": self.tail.nbytes(),
        }
