"""What a compression method is: options, what it needs from the prefill, and how it turns a prompt's cache into a draft
cache. A method is one file with one registered class; see `docs/architecture.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from vcbench import registry
from vcbench.calibration.base import Calibration, CalibrationNeed, Fit
from vcbench.compressors.checks import checked_layers, checking
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Decoder, Instruct, Prefill
from vcbench.engine.model.observe import Statistic
from vcbench.models.architecture import Architecture
from vcbench.models.progress import Progress, silent


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorOptions:
    """Base of every method's options; `__post_init__` raises ValueError for a value out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions(CompressorOptions):
    """How many of the prompt's entries a layer and head keeps."""

    factor: float = field(default=4.0, metadata={"doc": "Keep 1 / factor of the prompt's tokens."})
    budget_tokens: int | None = field(default=None, metadata={"doc": "Keep this many tokens instead of a share."})

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if self.budget_tokens is not None and self.budget_tokens < 1:
            raise ValueError(f"budget_tokens is {self.budget_tokens}; give at least 1")

    @property
    def always_kept(self) -> int:
        """Entries that stay whatever their scores; the budget leaves room for one more."""
        return 0

    def kept_tokens(self, tokens: int) -> int:
        """Entries kept of a prompt of `tokens`."""
        return min(tokens, max(self.budget_tokens or round(tokens / self.factor), self.always_kept + 1))


OptionsT = TypeVar("OptionsT", bound=CompressorOptions)
BudgetOptionsT = TypeVar("BudgetOptionsT", bound=BudgetOptions)


class Compressor(ABC, Generic[OptionsT]):
    """A registered method. `cache_class` is the class of the caches that an instance makes, which the gate checks."""

    Options: ClassVar[type[CompressorOptions]]
    summary: ClassVar[str]
    kind: ClassVar[Literal["none", "drop", "quantise", "noise"]]
    cache_class: type[KVCache]

    def __init_subclass__(cls, **given: Any) -> None:
        """What any `compress` gives is looked at, so that no method can forget it."""
        super().__init_subclass__(**given)
        if "compress" in vars(cls):
            cls.compress = checking(vars(cls)["compress"])  # type: ignore[method-assign]

    def __init__(self, options: OptionsT, calibration: Calibration | None = None) -> None:
        """A calibration is given to methods whose `calibration_need` asks for one, and then always."""
        self.options = options
        self._calibration = calibration

    @property
    def calibration(self) -> Calibration:
        """What was fitted for this model. Raises ValueError where none was given."""
        if self._calibration is None:
            raise ValueError(f"{type(self).__name__} needs a calibration under these options")
        return self._calibration

    @classmethod
    def calibration_need(cls, options: Any) -> CalibrationNeed | None:
        """The calibration that this method asks for under these options, or None."""
        return None

    @classmethod
    def calibrate(
        cls,
        options: Any,
        decoder: Decoder,
        samples: Sequence[Sequence[int]],
        *,
        instruct: Instruct | None = None,
        progress: Progress = silent,
    ) -> Fit:
        """Fits what `calibration_need` asks for to a model. samples: token ids, equally many in each.

        Deterministic, and not random where the text is the same.
        """
        raise NotImplementedError(f"{cls.__name__} has nothing to calibrate")

    @classmethod
    def unsupported(cls, options: Any, architecture: Architecture) -> str | None:
        """Why this method cannot run on a model, or None."""
        return None

    @property
    def query_window(self) -> int:
        """How many of the prompt's last queries `compress` needs."""
        return 0

    @property
    def statistics(self) -> tuple[Statistic[Any], ...]:
        """What `compress` wants gathered during the prefill."""
        return ()

    @abstractmethod
    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        """A new draft cache for the prompt; the full cache is left as it is.

        Raises MethodError, from outside of the method, where it is none of the prompt.
        """

    @classmethod
    @abstractmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        """Bytes that the draft cache of a prompt of `tokens` tokens will hold, to within a page."""


class DroppingCompressor(Compressor[OptionsT]):
    """A method that keeps the prompt entries of highest score, equally many in each head of a layer."""

    kind: ClassVar[Literal["none", "drop", "quantise", "noise"]] = "drop"
    cache_class: type[KVCache] = KeptCache

    @abstractmethod
    def budget(self, tokens: int) -> int:
        """Entries to keep of a prompt of `tokens` tokens; all of them when that is no less."""

    @abstractmethod
    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        """Importance of each prompt token, [Hk, T] float32; infinity for one that must stay, never NaN."""

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        tokens, shape = prefill.cache.tokens, prefill.cache.shape
        budget = self.budget(tokens)
        if budget >= tokens:
            everything = torch.arange(tokens, device=shape.device)
            return self.gather(prefill.cache, everything.expand(shape.n_layers, shape.n_kv_heads, -1))
        kept = [top_positions(scores, budget) for scores in self.checked_scores(prefill, budget)]
        return self.gather(prefill.cache, torch.stack(kept))

    def gather(self, full: FullCache, positions: Tensor) -> KVCache:
        """The draft cache of the entries of a full cache at positions: [L, Hk, kept]."""
        return KeptCache.gather(full, positions)

    def layer_scores(self, prefill: Prefill) -> Iterator[Tensor]:
        """`scores` of each layer in turn; for a method that scores all layers at once."""
        for layer in range(prefill.cache.shape.n_layers):
            yield self.scores(prefill, layer)

    def checked_scores(self, prefill: Prefill, budget: int | None = None) -> Iterator[Tensor]:
        """`layer_scores`, looked at. Raises MethodError with method, layer and shape where they are none."""
        name, full = registry.name_of("compressor", type(self)), prefill.cache
        return checked_layers(self.layer_scores(prefill), full.shape, full.tokens, method=name, budget=budget)


class BudgetCompressor(DroppingCompressor[BudgetOptionsT]):
    """A dropping method whose options are a budget and what its scores need."""

    def budget(self, tokens: int) -> int:
        return self.options.kept_tokens(tokens)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        return dropped_bytes(architecture, options.kept_tokens(tokens), element_bytes, positions=True)


def prefill_for(
    compressors: Iterable[Compressor[Any]],
    decoder: Decoder,
    token_ids: Sequence[int],
    *,
    chunk: int,
    instruct: Instruct | None = None,
) -> Prefill:
    """The prefill of a prompt with everything that these compressors will ask of it."""
    used = list(compressors)
    return decoder.prefill(
        token_ids,
        chunk=chunk,
        query_window=max((compressor.query_window for compressor in used), default=0),
        statistics=dict.fromkeys(wanted for compressor in used for wanted in compressor.statistics),
        instruct=instruct,
    )


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
