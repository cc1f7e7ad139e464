"""KVzap: KVzip's scores guessed from the layer's input by a surrogate (Jegou et al., arXiv 2601.07891)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vcbench.calibration.base import FILE_DOC, CalibrationNeed, Fit
from vcbench.compressors.base import BudgetCompressor, BudgetOptions
from vcbench.compressors.fits.kvzap import HIDDEN_UNITS
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Decoder, Instruct, Prefill
from vcbench.engine.model.linear import BlockedLinear, Linear, RowMode, TiledLinear
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic
from vcbench.models.architecture import Architecture
from vcbench.models.progress import Progress, silent
from vcbench.registry import register


@dataclass(frozen=True, slots=True, kw_only=True)
class KVzapOptions(BudgetOptions):
    """The published window; a budget in place of the published threshold, so that heads drop equally many."""

    surrogate: Literal["linear", "mlp"] = field(
        default="linear", metadata={"doc": "Ridge regression, or two layers with 512 units between."}
    )
    targets: Literal["kvzip", "kvzip+"] = field(
        default="kvzip", metadata={"doc": "Scores that it is fitted to: KVzip's, or weighted ones as in the paper."}
    )
    window: int = field(default=128, metadata={"doc": "Last prompt tokens, which always stay."})
    sinks: int = field(default=4, metadata={"doc": "First tokens, which always stay."})
    calibration: str | None = field(default=None, metadata={"doc": FILE_DOC})

    def __post_init__(self) -> None:
        BudgetOptions.__post_init__(self)
        if self.window < 0:
            raise ValueError(f"window is {self.window}; give 0 or more")
        if self.sinks < 0:
            raise ValueError(f"sinks is {self.sinks}; give 0 or more")

    @property
    def always_kept(self) -> int:
        return self.sinks + self.window


class SurrogateCache(KeptCache):
    """Kept entries and the surrogate that chose them, whose weights a server must hold as well.

    Requests share it; its bytes are charged to each, as those of any method's tables are.
    """

    surrogate: tuple[Tensor, ...] = ()

    def nbytes(self) -> dict[str, int]:
        return {**super().nbytes(), "tables": sum(tensor.nbytes for tensor in self.surrogate)}


@register("compressor", "kvzap")
class KVzap(BudgetCompressor[KVzapOptions]):
    """Drops the prompt tokens of lowest guessed KVzip score in each head; no second pass over the prompt.

    The surrogate is fitted per model by `vcbench calibrate` to logarithms of KVzip's scores. The paper evicts by a
    threshold, which lets heads differ; here each head keeps its best. Tokens generated since all stay.
    """

    Options = KVzapOptions
    summary = "drops tokens to which a fitted surrogate gives the lowest KVzip score"
    cache_class = SurrogateCache

    @classmethod
    def calibration_need(cls, options: Any) -> CalibrationNeed | None:
        settings = {"surrogate": options.surrogate}
        if options.targets != "kvzip":
            settings["targets"] = options.targets
        return CalibrationNeed(version=1, settings=settings, file=options.calibration, samples=24)

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
        from vcbench.compressors.fits.kvzap import fit
        from vcbench.compressors.kvzip import KVzipOptions

        target = KVzipOptions(sinks=options.sinks, weighted=options.targets == "kvzip+")
        return fit(decoder, samples, options.surrogate, target, instruct, progress)

    @property
    def statistics(self) -> tuple[Statistic[Any], ...]:
        return (self._wanted,)

    @property
    def _wanted(self) -> GuessedScores:
        return GuessedScores(self.calibration.sha256, self.calibration.tensors)

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        scores = prefill.statistic(self._wanted)[layer].clone()
        scores[:, : self.options.sinks] = torch.inf
        scores[:, max(0, scores.shape[1] - self.options.window) :] = torch.inf
        return scores

    def gather(self, full: FullCache, positions: Tensor) -> KVCache:
        cache = SurrogateCache.gather(full, positions)
        cache.surrogate = tuple(tensor.to(full.shape.device) for tensor in self.calibration.tensors.values())
        return cache

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        a = architecture
        outputs, inputs = a.n_layers * a.n_kv_heads, a.hidden_size
        weights = outputs * (inputs + 1)
        if options.surrogate == "mlp":
            weights = a.n_layers * HIDDEN_UNITS * (inputs + 1) + outputs * (HIDDEN_UNITS + 1)
        return super().estimate_bytes(options, architecture, tokens, element_bytes) + 4 * weights


@dataclass(frozen=True, slots=True)
class GuessedScores(Statistic[Tensor]):
    """What a surrogate says of every token of a prompt: log scores, [L, Hk, T] float32."""

    sha256: str
    tensors: Mapping[str, Tensor] = field(compare=False, repr=False)

    def begin(self, shape: KVShape, tokens: int) -> Accumulator[Tensor]:
        return _GuessedScores(self.tensors, shape, tokens)


class _GuessedScores(Accumulator[Tensor]):
    def __init__(self, tensors: Mapping[str, Tensor], shape: KVShape, tokens: int) -> None:
        stages = [("weight", "bias")] if "weight" in tensors else [("weight1", "bias1"), ("weight2", "bias2")]
        self._layers = [
            [row_linear(tensors[weight][layer], tensors[bias][layer], shape.device) for weight, bias in stages]
            for layer in range(shape.n_layers)
        ]
        self._scores = torch.zeros((shape.n_layers, shape.n_kv_heads, tokens), device=shape.device)

    def add(self, rows: LayerRows) -> None:
        span = slice(rows.start, rows.start + rows.hidden.shape[0])
        first, *second = self._layers[rows.layer]
        x = first(rows.hidden.float())
        for linear in second:
            x = linear(torch.nn.functional.gelu(x))
        self._scores[rows.layer, :, span] = x.mT

    def result(self) -> Tensor:
        return self._scores


def row_linear(weight: Tensor, bias: Tensor, device: torch.device) -> Linear:
    """weight: [out, in] as a layer; on CPU no row depends on how a prompt is cut into chunks."""
    if device.type == "cpu":
        return BlockedLinear(weight, bias)
    return TiledLinear(weight.to(device), bias.to(device), RowMode(bulk=True))
