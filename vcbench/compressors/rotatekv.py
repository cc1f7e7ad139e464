"""RotateKV: pre-RoPE keys rotated across heads, then coded token by token (Su et al., arXiv 2501.16383)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from vcbench.calibration.base import FILE_DOC, CalibrationNeed, Fit
from vcbench.compressors.base import Compressor, CompressorOptions
from vcbench.engine.codes.coders import ClippedCoder
from vcbench.engine.codes.frames import GroupedHeads, grouped_hadamard
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.rotation import is_power_of_two
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kernels.cpu.simd import LANES
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Decoder, Instruct, Prefill
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic, unrotate
from vcbench.models.architecture import Architecture
from vcbench.models.progress import Progress, silent
from vcbench.registry import register

PAPER_HEADS = 4
PAPER_GROUP = 128
PAPER_CLIP = {2: 0.8, 3: 1.0, 4: 1.0}
_ENTRY_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateKVOptions(CompressorOptions):
    """The paper's settings: 4 heads together, groups of 128, ranges clipped at 2 bits, about 20 sink entries exact."""

    bits: Literal[2, 3, 4] = field(default=4, metadata={"doc": "Bits of a code."})
    heads: int | None = field(
        default=None, metadata={"doc": "KV heads rotated together; 4, or 2 or 1 where 4 do not divide the model's."}
    )
    group: int | None = field(
        default=None,
        metadata={
            "doc": "Channels that share scale and zero (values: 16 or more); 128, or the next divisor of a layer's."
        },
    )
    clip: float | None = field(
        default=None, metadata={"doc": "Share of a group's range that codes span; 0.8 at 2 bits and 1 above."}
    )
    sinks: int = field(
        default=20, metadata={"doc": "The largest entries of a layer's input name the prompt tokens that stay exact."}
    )
    permutation: Literal["calibrated", "identity"] = field(
        default="calibrated", metadata={"doc": "Channels in groups of like means, or in the order they have."}
    )
    calibration: str | None = field(default=None, metadata={"doc": FILE_DOC})

    def __post_init__(self) -> None:
        if self.heads is not None and not is_power_of_two(self.heads):
            raise ValueError(f"heads is {self.heads}; give a power of two")
        if self.group is not None and (self.group < 8 or not is_power_of_two(self.group)):
            raise ValueError(f"group is {self.group}; give a power of two of at least 8")
        if self.clip is not None and not 0 < self.clip <= 1:
            raise ValueError(f"clip is {self.clip}; give a share above 0 and up to 1")
        if self.sinks < 0:
            raise ValueError(f"sinks is {self.sinks}; give 0 or more")
        if self.calibration is not None and self.permutation == "identity":
            raise ValueError("calibration names a file, but permutation is identity, which needs none")


@register("compressor", "rotatekv")
class RotateKV(Compressor[RotateKVOptions]):
    """Keys are taken back to before their rotary embedding and pass a Hadamard transform over `heads` heads at once.

    A permutation fitted per model puts channels of like means into one group, and each token's groups become codes with
    a float16 scale and minimum: bits + 32 / group an element. Values pass a transform of their own head. On reading,
    codes go the whole way back, block by block, the rotary embedding where they meet the queries. Tokens with massive
    activations in a layer's input stay exact in that layer, prompt tokens only. Unlike the paper's code the
    prefill attends to exact entries, and 3-bit codes span 7 steps, not 8.
    """

    Options = RotateKVOptions
    summary = "2- to 4-bit codes of keys rotated before their position embedding, sink tokens exact"
    kind = "quantise"
    cache_class = QuantisedCache

    @classmethod
    def unsupported(cls, options: Any, architecture: Architecture) -> str | None:
        a = architecture
        heads, channels = heads_together(options, a.n_kv_heads), a.n_kv_heads * a.head_dim
        if not is_power_of_two(a.head_dim) or a.head_dim < 8:
            return f"rotatekv needs a head size that is a power of two of at least 8, not {a.head_dim}"
        if a.n_kv_heads % heads:
            return f"rotatekv cannot rotate {heads} KV heads together: the model has {a.n_kv_heads} a layer"
        if channels % group_size(options, channels):
            return f"rotatekv needs a group that divides a layer's {channels} key channels; {options.group} does not"
        return None

    @classmethod
    def calibration_need(cls, options: Any) -> CalibrationNeed | None:
        if options.permutation == "identity":
            return None
        return CalibrationNeed(
            version=1, settings={"heads": options.heads or PAPER_HEADS}, file=options.calibration, samples=16
        )

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
        """Channels in ascending order of their signed sum over all tokens, layer by layer."""
        wanted = ChannelSums(heads_together(options, decoder.shape.n_kv_heads))
        total = torch.zeros(())
        for number, ids in enumerate(samples):
            progress("reading", number, len(samples))
            total = total + decoder.prefill(ids, chunk=len(ids), statistics=[wanted]).statistic(wanted)
        means = total / sum(map(len, samples))
        order = means.argsort(dim=1, stable=True)
        group = group_size(options, order.shape[1])
        return Fit(
            tensors={"order": order.to(torch.int32)},
            measured={
                "spread_of_means_in_a_group": _spread(means.gather(1, order), group),
                "spread_of_means_before": _spread(means, group),
            },
        )

    @property
    def statistics(self) -> tuple[Statistic[Any], ...]:
        return (MassiveTokens(self.options.sinks),) if self.options.sinks else ()

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        o, shape = self.options, prefill.cache.shape
        group = group_size(o, shape.n_kv_heads * shape.head_dim)
        scheme = Scheme(
            key_bits=o.bits,
            value_bits=o.bits,
            key_axis="token",
            key_group=group,
            value_group=value_group_size(group, shape.head_dim),
            symmetric=False,
        )
        frame = GroupedHeads(
            prefill.model().rope, self._order(shape), together=heads_together(o, shape.n_kv_heads), group=group
        )
        coder = ClippedCoder(o.bits, o.bits, PAPER_CLIP[o.bits] if o.clip is None else o.clip)
        exact = prefill.statistic(MassiveTokens(o.sinks)) if o.sinks else None
        return QuantisedCache.of_prompt(prefill.cache, scheme, coder, frame, exact)

    def _order(self, shape: KVShape) -> Tensor:
        if self.options.permutation == "calibrated":
            return self.calibration.tensors["order"].to(shape.device)
        channels = torch.arange(shape.n_kv_heads * shape.head_dim, device=shape.device)
        return channels.expand(shape.n_layers, -1)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        a = architecture
        channels = a.n_kv_heads * a.head_dim
        group = group_size(options, channels)
        metadata = 2 / group + 2 / value_group_size(group, a.head_dim)
        codes = tokens * a.kv_bytes_per_token(1) * (options.bits / 8 + metadata)
        exact = min(options.sinks, tokens) * a.kv_bytes_per_token(element_bytes)
        return int(codes + exact + _ENTRY_BYTES * (2 * a.n_layers * channels + a.head_dim**2))


def heads_together(options: RotateKVOptions, kv_heads: int) -> int:
    """KV heads of one transform: as asked for, or the most of 4, 2 and 1 that divide a layer's."""
    if options.heads is not None:
        return options.heads
    return next(heads for heads in (PAPER_HEADS, 2, 1) if kv_heads % heads == 0)


def group_size(options: RotateKVOptions, channels: int) -> int:
    """Channels of a group: as asked for, or the largest power of two up to 128 that divides a layer's."""
    return options.group or min(PAPER_GROUP, channels & -channels)


def value_group_size(group: int, head_dim: int) -> int:
    """Channels of a value's group, which lies within a head and fills the kernels' vectors: 16 or more."""
    return min(max(group, LANES), head_dim)


def _spread(means: Tensor, group: int) -> float:
    """Largest less smallest mean of a group's channels, averaged over groups and layers."""
    grouped = means.unflatten(1, (-1, group))
    return float((grouped.amax(-1) - grouped.amin(-1)).mean())


@dataclass(frozen=True, slots=True)
class ChannelSums(Statistic[Tensor]):
    """Signed sums over a prompt of the rotated pre-RoPE key channels: [L, Hk * D], float64."""

    together: int

    def begin(self, shape: KVShape, tokens: int) -> Accumulator[Tensor]:
        return _ChannelSums(self.together, shape)


class _ChannelSums(Accumulator[Tensor]):
    def __init__(self, together: int, shape: KVShape) -> None:
        self.together = together
        size = (shape.n_layers, shape.n_kv_heads * shape.head_dim)
        self.sums = torch.zeros(size, dtype=torch.float64, device=shape.device)

    def add(self, rows: LayerRows) -> None:
        k = unrotate(rows.k, rows.start, rows.cos, rows.sin).transpose(0, 1)
        self.sums[rows.layer] += grouped_hadamard(k, self.together).double().sum(0)

    def result(self) -> Tensor:
        return self.sums


@dataclass(frozen=True, slots=True)
class MassiveTokens(Statistic[list[Tensor]]):
    """For each layer the tokens, ascending int64, that hold the `count` largest |entries| of the layer's input."""

    count: int

    def begin(self, shape: KVShape, tokens: int) -> Accumulator[list[Tensor]]:
        return _MassiveTokens(self.count, shape)


class _MassiveTokens(Accumulator[list[Tensor]]):
    """Of equal entries the earlier token's counts first, however the prompt is cut into chunks."""

    def __init__(self, count: int, shape: KVShape) -> None:
        self.count = count
        self.sizes = [torch.empty(0, device=shape.device) for _ in range(shape.n_layers)]
        self.tokens = [torch.empty(0, dtype=torch.int64, device=shape.device) for _ in range(shape.n_layers)]

    def add(self, rows: LayerRows) -> None:
        sizes = rows.residual.float().abs()
        largest, columns = sizes.topk(min(self.count, sizes.shape[1]), dim=1)
        tokens = torch.arange(rows.start, rows.start + columns.shape[0], device=columns.device)
        layer = rows.layer
        merged = torch.cat([self.sizes[layer], largest.flatten()])
        owners = torch.cat([self.tokens[layer], tokens.repeat_interleave(columns.shape[1])])
        best = merged.argsort(descending=True, stable=True)[: self.count]
        self.sizes[layer], self.tokens[layer] = merged[best], owners[best]

    def result(self) -> list[Tensor]:
        return [tokens.unique() for tokens in self.tokens]
