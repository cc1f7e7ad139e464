"""KVQuant: codebook codes of pre-RoPE keys by channel and of values by token (Hooper et al., arXiv 2401.18079)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vcbench.calibration.base import FILE_DOC, Calibration, CalibrationNeed, Fit
from vcbench.compressors.base import Compressor, CompressorOptions
from vcbench.engine.codes.codebook import Codebooks, as_stored, normal_float, side_count
from vcbench.engine.codes.codebook_cache import NonuniformCache
from vcbench.engine.codes.frames import Kind
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Decoder, Instruct, Prefill
from vcbench.models.architecture import Architecture
from vcbench.models.progress import Progress, silent
from vcbench.registry import register

DEFAULT_OUTLIERS = 0.01
LARGEST_HEAD = 512
KINDS: tuple[Kind, ...] = ("keys", "values")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVQuantOptions(CompressorOptions):
    """The paper's defaults: nuq3-1% and the like, first token exact."""

    bits: Literal[2, 3, 4] = field(default=4, metadata={"doc": "Bits of a code."})
    outliers: float = field(
        default=DEFAULT_OUTLIERS, metadata={"doc": "Share of numbers kept exactly in sparse form; 0 keeps none."}
    )
    codebook: Literal["calibrated", "nf"] = field(
        default="calibrated",
        metadata={"doc": "Fitted by `vcbench calibrate`, or NormalFloat levels and the prompt's own key ranges."},
    )
    weights: Literal["fisher-range", "fisher"] = field(
        default="fisher-range",
        metadata={
            "doc": "Sensitivity in the fit: gradient squared times range squared (the paper), or without (its code)."
        },
    )
    q_norm: Literal["auto", "on", "off"] = field(
        default="auto", metadata={"doc": "Levels that keep mean and deviation (Q-Norm); auto is on at 2 bits."}
    )
    sinks: int = field(default=1, metadata={"doc": "First tokens, which stay exact; at most 64."})
    calibration: str | None = field(default=None, metadata={"doc": FILE_DOC})

    def __post_init__(self) -> None:
        if not 0 <= self.outliers <= 0.1:
            raise ValueError(f"outliers is {self.outliers}; give a share from 0 to 0.1")
        if not 0 <= self.sinks <= BLOCK:
            raise ValueError(f"sinks is {self.sinks}; give 0 to {BLOCK}")
        if self.codebook == "nf" and self.q_norm == "on":
            raise ValueError("q_norm is on, but nf levels have none; set q_norm to auto or codebook to calibrated")
        if self.codebook == "nf" and self.calibration is not None:
            raise ValueError("calibration names a file, which codebook nf does not use; remove it")


@register("compressor", "kvquant")
class KVQuant(Compressor[KVQuantOptions]):
    """Keys are coded before their rotary embedding, in static ranges by channel; values in each token's own range.

    All layers have a codebook each for keys and for values: k-means over calibration text, weighted by the loss's
    sensitivity. The extreme numbers stay exact in float16 with 16-bit places. Codes are made 64 tokens at a time; newer
    tokens are exact. b + 32 * outliers bits an element, and 32 bits a token and layer for the values' ranges.

    `codebook: nf` needs no calibration: NormalFloat levels, and key ranges from the tokens that are coded first, which
    then stay. Key limits are calibrated, so a prompt unlike the text has more outliers than asked for, and says so in
    its bytes.
    """

    Options = KVQuantOptions
    summary = "2- to 4-bit codebook codes: pre-RoPE keys per channel, values per token, sparse outliers exact"
    kind = "quantise"
    cache_class = NonuniformCache

    def __init__(self, options: KVQuantOptions, calibration: Calibration | None = None) -> None:
        super().__init__(options, calibration)
        self._books: Codebooks | None = None

    @classmethod
    def unsupported(cls, options: Any, architecture: Architecture) -> str | None:
        if architecture.head_dim > LARGEST_HEAD:
            return f"kvquant takes head sizes up to {LARGEST_HEAD}; it is {architecture.head_dim}"
        return None

    @classmethod
    def calibration_need(cls, options: Any) -> CalibrationNeed | None:
        if options.codebook == "nf":
            return None
        settings = {"outliers": options.outliers or DEFAULT_OUTLIERS}
        return CalibrationNeed(version=1, settings=settings, file=options.calibration)

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
        from vcbench.compressors.fits.kvquant import fit

        return fit(decoder, samples, options.outliers or DEFAULT_OUTLIERS, progress)

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        shape = prefill.cache.shape
        if self._books is None:
            nf = self.options.codebook == "nf"
            self._books = self._normal_float(shape.n_layers, shape.device) if nf else self._calibrated(shape.device)
        return NonuniformCache.of_prompt(prefill.cache, self._books, prefill.model().rope, self.options.sinks)

    def _calibrated(self, device: torch.device) -> Codebooks:
        o, tensors = self.options, {name: tensor.to(device) for name, tensor in self.calibration.tensors.items()}
        form = "sparse" if o.outliers else "dense"
        decoded = "decoded" if o.q_norm == "on" or (o.q_norm == "auto" and o.bits == 2) else "levels"
        levels = {kind: tensors[f"levels.{form}.{o.weights}.{kind}.{o.bits}"] for kind in KINDS}
        offsets, ranges = as_stored(tensors[f"offset.{form}"], tensors[f"range.{form}"])
        return Codebooks(
            bits=o.bits,
            levels=levels,
            decoded={kind: tensors[f"{decoded}.{form}.{o.weights}.{kind}.{o.bits}"] for kind in KINDS},
            offsets=offsets,
            ranges=ranges,
            outliers=o.outliers,
        )

    def _normal_float(self, layers: int, device: torch.device) -> Codebooks:
        levels = normal_float(self.options.bits).repeat(layers, 1).to(device)
        books: dict[Kind, Tensor] = dict.fromkeys(KINDS, levels)
        return Codebooks(
            bits=self.options.bits,
            levels=books,
            decoded=books,
            offsets=None,
            ranges=None,
            outliers=self.options.outliers,
        )

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        a = architecture
        coded = tokens // BLOCK * BLOCK
        first = min(options.sinks, tokens) if coded else 0
        exact = tokens - coded + first
        channels = a.n_kv_heads * a.head_dim
        key_outliers = options.outliers * channels
        value_outliers = 2 * side_count(channels, options.outliers)
        starts = 2 * 4 * a.n_kv_heads / BLOCK if options.outliers else 0
        a_token = 2 * channels * options.bits / 8 + 4 * (key_outliers + value_outliers) + 4 + starts
        tables = a.n_layers * (4 * channels + 4 * 4 * (1 << options.bits) + 4 * first)
        return int(coded * a.n_layers * a_token + exact * a.kv_bytes_per_token(element_bytes) + tables)
