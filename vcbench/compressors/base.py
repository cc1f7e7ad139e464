"""What a compression method is: options, what it needs from the prefill, and how it turns a prompt's cache into a draft
cache. A method is one file with one registered class; see `docs/architecture.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from vcbench.engine.cache import KVCache
from vcbench.engine.decoder import Prefill
from vcbench.engine.kept import KeptCache
from vcbench.models.architecture import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorOptions:
    """Base of every method's options; `__post_init__` raises ValueError for a value out of range."""


OptionsT = TypeVar("OptionsT", bound=CompressorOptions)


class Compressor(ABC, Generic[OptionsT]):
    """A registered method. `cache_class` is the class of the caches it makes, which the gate checks."""

    Options: ClassVar[type[CompressorOptions]]
    summary: ClassVar[str]
    kind: ClassVar[Literal["none", "drop", "quantise", "noise"]]
    cache_class: ClassVar[type[KVCache]]

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @classmethod
    def unsupported(cls, options: Any, architecture: Architecture) -> str | None:
        """Why this method cannot run on a model, or None."""
        return None

    @property
    def query_window(self) -> int:
        """How many of the prompt's last queries `compress` needs."""
        return 0

    @abstractmethod
    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        """A new draft cache for the prompt; the full cache is left as it is."""

    @classmethod
    @abstractmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        """Bytes that the draft cache of a prompt of `tokens` tokens will hold, to within a page."""


class DroppingCompressor(Compressor[OptionsT]):
    """A method that keeps the prompt entries of highest score, equally many in each head of a layer."""

    kind: ClassVar[Literal["none", "drop", "quantise", "noise"]] = "drop"
    cache_class = KeptCache

    @abstractmethod
    def budget(self, tokens: int) -> int:
        """Entries to keep of a prompt of `tokens` tokens; all of them when that is no less."""

    @abstractmethod
    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        """Importance of each prompt token, [Hk, T] float32; infinity for one that must stay."""

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        tokens, shape = prefill.cache.tokens, prefill.cache.shape
        budget = self.budget(tokens)
        if budget >= tokens:
            everything = torch.arange(tokens, device=shape.device)
            return KeptCache.gather(prefill.cache, everything.expand(shape.n_layers, shape.n_kv_heads, -1))
        kept = [top_positions(self.scores(prefill, layer), budget) for layer in range(shape.n_layers)]
        return KeptCache.gather(prefill.cache, torch.stack(kept))


def top_positions(scores: Tensor, count: int) -> Tensor:
    """Ascending positions of the `count` highest scores of each row; of equal scores the later position wins.

    scores: [Hk, T]. Returns [Hk, count], int64.
    """
    last = scores.shape[1] - 1
    order = scores.flip(1).argsort(dim=1, descending=True, stable=True)[:, :count]
    return (last - order).sort(dim=1).values


def check_factor(factor: float) -> None:
    """Raises ValueError unless `factor` is a compression factor above 1."""
    if not factor > 1:
        raise ValueError(f"factor is {factor}; give how many times smaller the cache gets, above 1 (4 keeps a quarter)")


def dropped_bytes(architecture: Architecture, kept: int, element_bytes: int, *, positions: bool) -> int:
    """Bytes of `kept` entries a layer and head, with an int32 position each where the method stores it."""
    index = 4 * architecture.n_layers * architecture.n_kv_heads * kept if positions else 0
    return kept * architecture.kv_bytes_per_token(element_bytes) + index
