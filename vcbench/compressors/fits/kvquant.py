"""KVQuant's calibration (arXiv 2401.18079): ranges of key channels, codebooks weighted by the loss's sensitivity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vcbench.calibration.base import Fit
from vcbench.calibration.codebooks import Array, Histogram
from vcbench.calibration.gradients import Sensitivity, key_value_gradients
from vcbench.engine.codes.codebook import channel_limits, value_ranges
from vcbench.engine.model.decoder import Decoder
from vcbench.models.progress import Progress

Form = Literal["dense", "sparse"]
Weighting = Literal["fisher-range", "fisher"]
FORMS: tuple[Form, ...] = ("dense", "sparse")
WEIGHTINGS: tuple[Weighting, ...] = ("fisher-range", "fisher")
BITS = (2, 3, 4)
SKIPPED = 1
"""First tokens of each sample that do not count: the attention sink's keys are like no other's."""
_MOST_NUMBERS = 1 << 20
"""Numbers of a layer that a codebook is fitted on; of more, evenly spaced tokens are taken."""


def fit(decoder: Decoder, samples: Sequence[Sequence[int]], outliers: float, progress: Progress) -> Fit:
    """Ranges and codebooks for every number of bits, with and without outliers, under both weightings.

    outliers: the share of numbers that the sparse form leaves out, half of it at either end.

    Tensors: offset.<form>, range.<form>: [L, Hk, D] float32, of pre-RoPE key channels;
    levels.<form>.<weighting>.<kind>.<bits>: [L, 2 ** bits] float32, and `decoded.` likewise, which is after Q-Norm.
    """
    gathered = [_Gathered([], [], [], []) for _ in range(decoder.shape.n_layers)]
    losses = []
    for number, ids in enumerate(samples):
        progress("gradients", number, len(samples))
        losses.append(key_value_gradients(decoder, ids, lambda found: gathered[found.layer].add(found)))
    layers: list[dict[str, Tensor]] = []
    for number in range(len(gathered)):
        progress("codebooks", number, decoder.shape.n_layers)
        layers.append(_fit_layer(gathered[number], outliers, decoder.shape.n_kv_heads))
        gathered[number].clear()
    progress("codebooks", len(layers), len(layers))
    tensors = {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    return Fit(tensors=tensors, measured={"loss_nats_per_token": float(np.mean(losses)) if losses else None})


@dataclass(slots=True)
class _Gathered:
    """A layer's keys, values and the sizes of their gradients from all samples: lists of [T, Hk * D].

    Half precision: a codebook's error is far above it, and weights need no digits.
    """

    keys: list[Tensor]
    values: list[Tensor]
    key_weights: list[Tensor]
    value_weights: list[Tensor]

    def add(self, found: Sensitivity) -> None:
        for target, source in ((self.keys, found.keys), (self.values, found.values)):
            target.append(source[SKIPPED:].flatten(1).half().cpu())
        for target, source in (
            (self.key_weights, found.key_gradients),
            (self.value_weights, found.value_gradients),
        ):
            target.append(source[SKIPPED:].flatten(1).abs().bfloat16().cpu())

    def clear(self) -> None:
        for part in (self.keys, self.values, self.key_weights, self.value_weights):
            part.clear()


def _fit_layer(gathered: _Gathered, outliers: float, heads: int) -> dict[str, Tensor]:
    keys, values = torch.cat(gathered.keys).float(), torch.cat(gathered.values).float()
    key_fisher, value_fisher = (
        torch.cat(part).float().square() for part in (gathered.key_weights, gathered.value_weights)
    )
    ordered = keys.sort(dim=0).values
    found: dict[str, Tensor] = {}
    for form in FORMS:
        low, high = channel_limits(ordered, outliers if form == "sparse" else 0.0)
        offset, spread = (high + low) / 2, (high - low) / 2
        found[f"offset.{form}"], found[f"range.{form}"] = (x.unflatten(0, (heads, -1)) for x in (offset, spread))
        value_offset, value_range, _ = value_ranges(values, outliers if form == "sparse" else 0.0)
        for kind, x, fisher, centre, width in (
            ("keys", keys, key_fisher, offset[None], spread[None]),
            ("values", values, value_fisher, value_offset[:, None], value_range[:, None]),
        ):
            for name, levels in _codebooks(x, fisher, centre, width):
                found[f"{name[0]}.{form}.{name[1]}.{kind}.{name[2]}"] = levels
    return found


def _codebooks(
    x: Tensor, fisher: Tensor, centre: Tensor, width: Tensor
) -> Iterator[tuple[tuple[str, Weighting, int], Tensor]]:
    """Levels and Q-normed levels of numbers x: [N, C] under each weighting and number of bits."""
    step = max(1, x.numel() // _MOST_NUMBERS)
    x, fisher = x[::step], fisher[::step]
    centre, width = (y[::step] if y.shape[0] > 1 else y for y in (centre, width))
    scaled = (x - centre) / width.clamp(min=torch.finfo(torch.float32).tiny)
    kept = (scaled.abs() <= 1) & (width > 0)
    plain = Histogram()
    plain.add(_numbers(scaled[kept]))
    for weighting in WEIGHTINGS:
        weights = fisher * width.square() if weighting == "fisher-range" else fisher
        weighted = Histogram()
        weighted.add(_numbers(scaled[kept]), _numbers(weights.expand_as(x)[kept]))
        for bits in BITS:
            levels = weighted.levels(1 << bits)
            yield ("levels", weighting, bits), torch.from_numpy(levels).float()
            yield ("decoded", weighting, bits), torch.from_numpy(q_normed(plain, levels)).float()


def q_normed(numbers: Histogram, levels: Array) -> Array:
    """The levels stretched and moved so that rounding keeps the numbers' mean and standard deviation (Q-Norm)."""
    mean, deviation = numbers.mean_and_deviation()
    rounded_mean, rounded_deviation = numbers.rounded_to(levels)
    if rounded_deviation <= 0:
        return levels
    factor = deviation / rounded_deviation
    return levels * factor + (mean - rounded_mean * factor)


def _numbers(x: Tensor) -> Array:
    return x.double().numpy()
