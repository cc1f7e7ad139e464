"""KVzip: keep what the model attends to while it repeats its context (Kim et al., arXiv 2505.23416)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vcbench.compressors.base import CompressorOptions, DroppingCompressor, check_factor, top_positions
from vcbench.engine.attention.key_shares import Columns, Range, attention_by_column
from vcbench.engine.kv.cache import EntryCache, KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.kv.ragged import RaggedCache
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.engine.model.observe import LayerRows
from vcbench.models.architecture import Architecture
from vcbench.registry import register

WHOLE = "Repeat the previous context exactly."
PART = "Repeat the part of the previous context exactly that starts with:"
QUOTED_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KVzipOptions(CompressorOptions):
    """The published code's defaults."""

    keep: float = field(default=0.3, metadata={"doc": "Share of the prompt's tokens that stays, sinks included."})
    factor: float | None = field(default=None, metadata={"doc": "Keep 1 / factor of the tokens instead of `keep`."})
    chunk: int = field(default=2000, metadata={"doc": "Tokens that one pass of the reconstruction repeats."})
    sinks: int = field(default=4, metadata={"doc": "First tokens, which always stay."})
    eviction: Literal["pair-uniform", "pair"] = field(
        default="pair-uniform",
        metadata={"doc": "Equally many entries in every head, or the best of all layers and heads (the paper's)."},
    )
    normalise: Literal["reduced", "full"] = field(
        default="reduced", metadata={"doc": "Softmax over sinks, chunk and its repetition, or over the whole context."}
    )
    reads: Literal["context", "chunk"] = field(
        default="context",
        metadata={
            "doc": "What the repetition attends to: the context (the paper), or sinks and its chunk, at half the cost."
        },
    )
    weighted: bool = field(
        default=False,
        metadata={"doc": "KVzip+: weigh a share by its value's size after the output projection over its row's input."},
    )

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; give a share above 0 and at most 1")
        if self.factor is not None:
            check_factor(self.factor)
        if self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; give at least 1 token")
        if self.sinks < 0:
            raise ValueError(f"sinks is {self.sinks}; give 0 or more")
        if self.reads == "chunk" and self.normalise == "full":
            raise ValueError("reads is chunk, so that the whole context is not met; give normalise: reduced")


@register("compressor", "kvzip")
class KVzip(DroppingCompressor[KVzipOptions]):
    """Query-agnostic: an entry's score is the highest attention that it gets while the model repeats its context.

    Chunk by chunk, the model reads an instruction to repeat the context and then the chunk itself, over the full cache.
    In each layer the rows of this pass attend, for scoring alone, to the sinks, the chunk and the pass itself; a key of
    the chunk scores the maximum over rows and over the query heads of its group. On CPU these shares come out of the
    pass's own attention. Cost: the linear layers of another prefill, each of whose rows attends to the whole prompt;
    with `reads: chunk`, to one chunk, which keeps about nine in ten of the same entries (docs/compressors.md), and all
    where the prompt is one chunk.

    KVzip+ (`weighted`; Jegou et al., arXiv 2601.07891) multiplies the share that row t of query head h gives key i by
    |W_o^h v_i| / |h_t|, where h_t is the layer's normalised input, before the maximum.
    """

    Options = KVzipOptions
    summary = "drops tokens that the model does not attend to while repeating its context"

    def __init__(self, options: KVzipOptions) -> None:
        super().__init__(options)
        self.cache_class = RaggedCache if options.eviction == "pair" else KeptCache

    def budget(self, tokens: int) -> int:
        return kept_tokens(self.options, tokens)

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        return reconstruction_scores(prefill, self.options)[layer]

    def layer_scores(self, prefill: Prefill) -> Iterator[Tensor]:
        yield from reconstruction_scores(prefill, self.options)

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        if self.options.eviction == "pair-uniform":
            return super().compress(prefill, seed=seed)
        shape, tokens = prefill.cache.shape, prefill.cache.tokens
        count = kept_entries(self.options, (shape.n_layers, shape.n_kv_heads, tokens))
        kept = torch.ones((shape.n_layers, shape.n_kv_heads, tokens), dtype=torch.bool, device=shape.device)
        if count < kept.numel():
            scores = torch.stack(list(self.checked_scores(prefill)))
            kept = torch.zeros_like(kept)
            kept.view(-1)[top_positions(scores.view(1, -1), count)] = True
        return RaggedCache.gather(prefill.cache, [[head.nonzero().mT for head in layer] for layer in kept])

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        shape = (architecture.n_layers, architecture.n_kv_heads, tokens)
        return kept_entries(options, shape) * (2 * architecture.head_dim * element_bytes + 4)


def kept_tokens(options: KVzipOptions, tokens: int) -> int:
    """How many tokens of a prompt stay; never fewer than the sinks and one more."""
    return min(tokens, max(round(share(options) * tokens), options.sinks + 1))


def kept_entries(options: KVzipOptions, shape: Sequence[int]) -> int:
    """How many entries of scores [L, Hk, T] stay in all."""
    layers, heads, tokens = shape
    if options.eviction == "pair-uniform" or kept_tokens(options, tokens) >= tokens:
        return layers * heads * kept_tokens(options, tokens)
    return max(round(share(options) * layers * heads * tokens), layers * heads * options.sinks)


def share(options: KVzipOptions) -> float:
    """The share of the prompt that stays."""
    return options.keep if options.factor is None else 1 / options.factor


def reconstruction_scores(prefill: Prefill, options: KVzipOptions) -> Tensor:
    """Scores of all layers, [L, Hk, T] float32; infinity for sinks."""
    shape, tokens, decoder = prefill.cache.shape, prefill.cache.tokens, prefill.model()
    result = torch.full((shape.n_layers, shape.n_kv_heads, tokens), float("inf"), device=shape.device)
    for start in range(options.sinks, tokens, options.chunk):
        stop = min(tokens, start + options.chunk)
        reading = _Reading(prefill, options, start, stop, result[:, :, start:stop])
        decoder.read_on(reading.cache, repetition(prefill, start, stop, first=start == options.sinks), reading.read)
    return result


class _Reading:
    """One pass of the reconstruction: tokens start .. stop - 1 are repeated over `cache`, and get their `scores`."""

    def __init__(self, prefill: Prefill, options: KVzipOptions, start: int, stop: int, scores: Tensor) -> None:
        """scores: [L, Hk, stop - start], written into."""
        self.options, self.decoder, self.scores = options, prefill.model(), scores
        self.cache: EntryCache = prefill.cache
        self.wanted = (start, stop)
        if options.reads == "chunk":
            shape = prefill.cache.shape
            met = torch.tensor([*range(options.sinks), *range(start, stop)], device=shape.device)
            self.cache = KeptCache.gather(prefill.cache, met.expand(shape.n_layers, shape.n_kv_heads, -1))
            self.wanted = (options.sinks, len(met))

    def read(self, rows: LayerRows) -> Tensor | None:
        """Scores one layer; returns the rows' attention where it came along."""
        columns, last = self.columns(rows), self.cache.shape.n_layers - 1
        weights = rows.hidden.float().norm(dim=1).reciprocal() if self.options.weighted else None
        found, mixed = attention_by_column(rows.q, columns, weights, attend=rows.layer < last)
        if self.options.weighted:
            found = found * projected_sizes(self.decoder, self.cache, rows.layer, self.wanted)
        self.scores[rows.layer] = found.unflatten(0, (self.scores.shape[1], -1)).amax(1)
        return mixed

    def columns(self, rows: LayerRows) -> Columns:
        """What the rows meet in the softmax that scores."""
        entries = self.cache.entries()
        stop = entries + rows.q.shape[0]
        whole = self.options.reads == "chunk" or self.options.normalise == "full"
        return Columns(
            store=self.cache.store,
            layer=rows.layer,
            first_visible=entries + 1,
            seen=[(0, stop)] if whole else [(0, self.options.sinks), self.wanted, (entries, stop)],
            wanted=self.wanted,
            reduce="highest",
        )


def projected_sizes(decoder: Decoder, cache: EntryCache, layer: int, entries: Range) -> Tensor:
    """How large values are after each query head's part of the output projection, |W_o^h v_i|: [H, entries]."""
    values = cache.store.read_range(layer, *entries)[1].float()
    shape = cache.shape
    weight = decoder.weights.layers[layer].output.weight().float().unflatten(1, (shape.n_heads, shape.head_dim))
    group = shape.n_heads // shape.n_kv_heads
    return torch.stack([(values[h // group] @ weight[:, h].mT).norm(dim=1) for h in range(shape.n_heads)])


def repetition(prefill: Prefill, start: int, stop: int, *, first: bool) -> list[int]:
    """What follows the context so that the model repeats tokens start .. stop - 1: an instruction, then the tokens.

    A later chunk's instruction quotes the tokens just before it. No instruction where there is no tokenizer.
    """
    ids = list(prefill.token_ids[start:stop])
    if prefill.instruct is None:
        return ids
    if first:
        return prefill.instruct(WHOLE, []) + ids
    return prefill.instruct(PART, prefill.token_ids[max(0, start - QUOTED_TOKENS) : start]) + ids
