"""KVzip: keep what the model attends to while it repeats its context (Kim et al., arXiv 2505.23416)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vcbench.compressors.base import CompressorOptions, DroppingCompressor, check_factor, top_positions
from vcbench.engine.cache import KVCache
from vcbench.engine.columns import attention_by_column
from vcbench.engine.decoder import Prefill
from vcbench.engine.kept import KeptCache
from vcbench.engine.observe import LayerRows
from vcbench.engine.ragged import RaggedCache
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

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; give a share above 0 and at most 1")
        if self.factor is not None:
            check_factor(self.factor)
        if self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; give at least 1 token")
        if self.sinks < 0:
            raise ValueError(f"sinks is {self.sinks}; give 0 or more")


@register("compressor", "kvzip")
class KVzip(DroppingCompressor[KVzipOptions]):
    """Query-agnostic: an entry's score is the highest attention that it gets while the model repeats its context.

    Chunk by chunk, the model reads an instruction to repeat the context and then the chunk itself, over the full cache.
    In each layer the rows of this pass attend, for scoring alone, to the sinks, the chunk and the pass itself; a key of
    the chunk scores the maximum over rows and over the query heads of its group. Cost: the linear layers of another
    prefill, each of whose rows attends to the whole prompt, and the scoring.
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
            scores = reconstruction_scores(prefill, self.options)
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
    shape, tokens = prefill.cache.shape, prefill.cache.tokens
    result = torch.full((shape.n_layers, shape.n_kv_heads, tokens), float("inf"), device=shape.device)
    decoder = prefill.model()
    for start in range(options.sinks, tokens, options.chunk):
        stop = min(tokens, start + options.chunk)

        def score(rows: LayerRows, start: int = start, stop: int = stop) -> None:
            others = [(0, options.sinks)] if options.normalise == "reduced" else [(0, start), (stop, tokens)]
            store, layer = rows.cache.store, rows.layer
            known = [store.read_range(layer, first, last)[0] for first, last in [(start, stop), *others]]
            seen = torch.cat([*known, rows.k.transpose(0, 1)], dim=1)
            visible = seen.shape[1] - rows.k.shape[0] + 1
            result[rows.layer, :, start:stop] = attention_by_column(rows.q, seen, visible, stop - start, "highest")

        decoder.read_on(prefill.cache, repetition(prefill, start, stop, first=start == options.sinks), score)
    return result


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
