"""One decoder for the Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE families.

`forward` takes ragged blocks of rows, each against a cache of its own; a row's result does not depend on the others.
`prefill` runs a prompt through in chunks and need not be row-invariant: every cell starts from its one result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from vcbench.engine.attention.forward import BatchAttention
from vcbench.engine.attention.readers import attend
from vcbench.engine.clock import now
from vcbench.engine.kv.cache import EntryCache, FullCache, KVCache
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.model.gathering import Gathering, PrefillTime
from vcbench.engine.model.linear import Linear, RowMode, set_tiles
from vcbench.engine.model.mlp import FeedForward
from vcbench.engine.model.observe import LayerRows, Reader, Statistic
from vcbench.engine.model.row_operations import RowOperations
from vcbench.engine.rope import RopeTable
from vcbench.models.architecture import Architecture


@dataclass(slots=True, kw_only=True)
class Layer:
    """One transformer block; `query_norm` and `key_norm` are None without QK-norm."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    mlp: FeedForward
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None


@dataclass(slots=True, kw_only=True)
class Weights:
    """Everything learned. embedding: [V, hidden]."""

    embedding: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Linear

    def linears(self) -> list[Linear]:
        """Every linear layer."""
        layers = [self.head]
        for layer in self.layers:
            layers += [layer.qkv, layer.output, *layer.mlp.linears()]
        return layers


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive tokens of one request, to be appended to its cache."""

    cache: KVCache
    token_ids: Sequence[int]


Instruct = Callable[[str, Sequence[int]], list[int]]
"""Ids that put an instruction (text, then quoted ids) to the model as its next turn, up to where the answer begins."""

ResultT = TypeVar("ResultT")


@dataclass(slots=True, kw_only=True)
class Prefill:
    """What a prompt leaves behind: first_logits: [V]; queries: per layer [W, H, D], post-RoPE, the last W tokens.

    `statistics` were gathered on the way. `instruct` is None for a model without a tokenizer. `time` is None where
    nobody measured it.
    """

    cache: FullCache
    first_logits: Tensor
    queries: list[Tensor] = field(default_factory=list)
    token_ids: tuple[int, ...] = ()
    decoder: Decoder | None = None
    instruct: Instruct | None = None
    statistics: dict[Statistic[Any], Any] = field(default_factory=dict)
    time: PrefillTime | None = None

    def statistic(self, wanted: Statistic[ResultT]) -> ResultT:
        """A statistic of the prompt. Cost: another pass over the prompt if the prefill was not asked to gather it."""
        if wanted not in self.statistics:
            found = self.model().prefill(self.token_ids, chunk=len(self.token_ids), statistics=[wanted])
            self.statistics[wanted] = found.statistics[wanted]
        result: ResultT = self.statistics[wanted]
        return result

    def model(self) -> Decoder:
        """The decoder that made this. Raises ValueError if there was none."""
        if self.decoder is None or len(self.token_ids) != self.cache.tokens:
            raise ValueError("this compressor reads the prompt again; let Decoder.prefill make its Prefill")
        return self.decoder


LayerWatch = Callable[[int, Tensor], None]


class Decoder:
    """A model ready to run."""

    def __init__(
        self, architecture: Architecture, weights: Weights, rows: RowOperations, shape: KVShape, mode: RowMode
    ) -> None:
        self.architecture, self.weights, self.rows, self.shape, self.mode = architecture, weights, rows, shape, mode
        self.rope = RopeTable(architecture.rope, architecture.head_dim, shape.device)
        self.narrowed: dict[str, Decoder] = {}
        """Copies with narrower weights, made when they are first asked for; see `draft_weights`."""
        self.watch: LayerWatch | None = None

    def with_weights(self, weights: Weights) -> Decoder:
        """The same model with other weights; rotary tables and row operations are shared."""
        other = copy(self)
        other.weights, other.narrowed = weights, {}
        return other

    def set_tiles(self) -> dict[str, int]:
        """Probes every shape of linear layer that torch computes; see `linear.set_tiles`."""
        return set_tiles(self.weights.linears())

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        """Logits [sum of block lengths, V], float32; the caches have advanced by their blocks (uncommitted)."""
        x, positions = self._embed(blocks)
        attention = BatchAttention([(block.cache, len(block.token_ids)) for block in blocks])
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._project(layer, self._attention_input(layer, x), positions)
            log_queries(blocks, index, q)
            x = self._finish_layer(index, layer, x, attention(index, q, k, v))
        for block in blocks:
            block.cache.advance(len(block.token_ids))
        return self._logits(x)

    def prefill(
        self,
        token_ids: Sequence[int],
        *,
        chunk: int,
        query_window: int = 0,
        statistics: Collection[Statistic[Any]] = (),
        instruct: Instruct | None = None,
    ) -> Prefill:
        """Runs a prompt through a new full cache, `chunk` tokens at a time, and commits it."""
        began = now(self.shape.device)
        cache = FullCache(self.shape)
        gathering = Gathering(self.shape, len(token_ids), query_window=query_window, statistics=statistics)
        x = torch.empty(0)
        for start in range(0, len(token_ids), chunk):
            x = self._run_prompt(cache, token_ids[start : start + chunk], gathering.show)
        cache.commit(len(token_ids))
        first_logits, results = self._logits(x[-1:])[0], gathering.results()
        return Prefill(
            cache=cache,
            first_logits=first_logits,
            queries=gathering.windows,
            token_ids=tuple(token_ids),
            decoder=self,
            instruct=instruct,
            statistics=results,
            time=gathering.time(now(self.shape.device) - began),
        )

    def read_on(self, cache: EntryCache, token_ids: Sequence[int], reader: Reader) -> None:
        """Shows `reader` every layer's rows for tokens that follow a committed cache, then forgets them again.

        Cost: a prefill of these tokens after the cache's, but for the attention and the MLP of the last layer, which
        nobody would see.
        """
        try:
            self._run_prompt(cache, token_ids, reader, whole=False)
        finally:
            cache.roll_back()
            cache.store.release(cache.entries())

    def _run_prompt(self, cache: EntryCache, token_ids: Sequence[int], reader: Reader, whole: bool = True) -> Tensor:
        """Appends tokens to a cache and returns the last layer's output, which is of no use if not `whole`."""
        self.mode.bulk = True
        try:
            x, positions = self._embed([Block(cache, token_ids)])
            for index, layer in enumerate(self.weights.layers):
                hidden = self._attention_input(layer, x)
                q, k, v = self._project(layer, hidden, positions)
                cache.write(index, k, v)
                mixed = reader(self._layer_rows(index, cache, (x, hidden), (q, k, v)))
                if whole or index < len(self.weights.layers) - 1:
                    mixed = self._attend_prompt(cache, index, q, k, v) if mixed is None else mixed
                    x = self._finish_layer(index, layer, x, mixed)
        finally:
            self.mode.bulk = False
        cache.advance(len(token_ids))
        return x

    def _layer_rows(
        self, layer: int, cache: EntryCache, inputs: tuple[Tensor, Tensor], qkv: tuple[Tensor, Tensor, Tensor]
    ) -> LayerRows:
        (residual, hidden), (q, k, v) = inputs, qkv
        return LayerRows(
            layer=layer,
            start=cache.tokens,
            cache=cache,
            residual=residual,
            hidden=hidden,
            q=q,
            k=k,
            v=v,
            cos=self.rope.cos,
            sin=self.rope.sin,
        )

    def _attend_prompt(self, cache: EntryCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of a chunk, its entries written, over everything up to its end. q: [n, H, D].

        On CPU by the same kernel as decoding, which is faster than SDPA there; elsewhere by SDPA.
        """
        if isinstance(cache.store, PagedStore):
            return attend(cache, layer, q)
        n, before = q.shape[0], cache.entries()
        keys, values, mask = k.transpose(0, 1), v.transpose(0, 1), None
        if before:
            keys, values = cache.store.read_range(layer, 0, before + n)
            columns = torch.arange(before + n, device=q.device)
            mask = columns[None, :] <= before + torch.arange(n, device=q.device)[:, None]
        group = self.architecture.group_size
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys.repeat_interleave(group, 0)[None],
            values.repeat_interleave(group, 0)[None],
            attn_mask=mask,
            is_causal=mask is None,
        )
        return out[0].transpose(0, 1)

    def _embed(self, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        ids = torch.tensor([token for block in blocks for token in block.token_ids], device=self.shape.device)
        positions = torch.cat(
            [torch.arange(block.cache.tokens, block.cache.tokens + len(block.token_ids)) for block in blocks]
        )
        self.rope.reserve(int(positions.max()) + 1)
        return self.weights.embedding[ids], positions.to(self.shape.device)

    def _attention_input(self, layer: Layer, x: Tensor) -> Tensor:
        return self.rows.rms_norm(x, layer.attention_norm, self.architecture.norm_eps)

    def _project(self, layer: Layer, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q: [n, H, D], k, v: [n, Hk, D]; q and k normalised where the model does so, and rotated."""
        a = self.architecture
        qkv = layer.qkv(x)
        queries = a.n_heads * a.head_dim
        if layer.query_norm is not None and layer.key_norm is not None:
            self.rows.norm_heads(qkv, 0, a.n_heads, layer.query_norm, a.norm_eps)
            self.rows.norm_heads(qkv, queries, a.n_kv_heads, layer.key_norm, a.norm_eps)
        self.rows.rotate(qkv, a.n_heads + a.n_kv_heads, a.head_dim, positions, self.rope.cos, self.rope.sin)
        q, k, v = qkv.split([queries, a.n_kv_heads * a.head_dim, a.n_kv_heads * a.head_dim], dim=1)
        return q.unflatten(1, (-1, a.head_dim)), k.unflatten(1, (-1, a.head_dim)), v.unflatten(1, (-1, a.head_dim))

    def _finish_layer(self, index: int, layer: Layer, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + layer.output(mixed.flatten(1))
        x = x + layer.mlp(self.rows.rms_norm(x, layer.mlp_norm, self.architecture.norm_eps))
        if self.watch is not None:
            self.watch(index, x)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return self.weights.head(self.rows.rms_norm(x, self.weights.norm, self.architecture.norm_eps)).float()


def log_queries(blocks: Sequence[Block], layer: int, q: Tensor) -> None:
    """Takes down q: [rows of all blocks, H, D] for those caches that want it."""
    start = 0
    for block in blocks:
        stop = start + len(block.token_ids)
        if block.cache.queries is not None:
            block.cache.queries.note(layer, block.cache.tokens, q[start:stop])
        start = stop
