"""KVzap's calibration (arXiv 2601.07891): a surrogate that says KVzip's scores, or KVzip+'s, from a layer's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vcbench.calibration.base import Fit
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Decoder, Instruct
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic
from vcbench.models.progress import Progress

if TYPE_CHECKING:
    from vcbench.compressors.kvzip import KVzipOptions

Kind = Literal["linear", "mlp"]
HIDDEN_UNITS = 512
LEAST_SCORE = 1e-8
"""Below this, attention shares are rounding; the surrogate learns logarithms."""
HELD_OUT = 4
"""Every fourth sample is kept from the fit and measures it."""
KEPT_SHARES = (0.5, 0.25, 0.125)
_RIDGE = 1e-3
_STEPS = 300
_BATCH = 256
_LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Hidden(Statistic[list[Tensor]]):
    """Every layer's normalised input of a whole prompt, [T, hidden] float16 each."""

    def begin(self, shape: KVShape, tokens: int) -> Accumulator[list[Tensor]]:
        return _Hidden(shape.n_layers)


class _Hidden(Accumulator[list[Tensor]]):
    def __init__(self, layers: int) -> None:
        self._rows: list[list[Tensor]] = [[] for _ in range(layers)]

    def add(self, rows: LayerRows) -> None:
        self._rows[rows.layer].append(rows.hidden.half())

    def result(self) -> list[Tensor]:
        return [torch.cat(rows) for rows in self._rows]


@dataclass(frozen=True, slots=True)
class Piece:
    """One sample: inputs of each layer [T, hidden], float16, and log scores [L, Hk, T]; sinks are left out of both."""

    hidden: list[Tensor]
    scores: Tensor


def fit(
    decoder: Decoder,
    samples: Sequence[Sequence[int]],
    kind: Kind,
    target: KVzipOptions,
    instruct: Instruct | None,
    progress: Progress,
) -> Fit:
    """A surrogate of the scores under `target` for each layer. Tensors of a linear one: weight [L, Hk, hidden], bias
    [L, Hk]; of an MLP: weight1 [L, 512, hidden], bias1 [L, 512], weight2 [L, Hk, 512], bias2 [L, Hk]. All float32.

    Measured on every fourth sample, which the fit does not see (of fewer than four none is held out, which is said, and
    all are measured): Spearman's rank correlation with the scores over the tokens of a text, mean and lowest of layers
    and heads; and the share of the summed score that the best tokens by the surrogate hold, at some budgets.
    """
    pieces = []
    for number, ids in enumerate(samples):
        progress("KVzip scores", number, len(samples))
        pieces.append(_piece(decoder, ids, target, instruct))
    held_out = pieces[HELD_OUT - 1 :: HELD_OUT]
    fitted = [piece for number, piece in enumerate(pieces, 1) if number % HELD_OUT]
    measured = held_out or pieces
    layers, predicted = [], []
    for layer in range(decoder.shape.n_layers):
        progress("surrogates", layer, decoder.shape.n_layers)
        x = torch.cat([piece.hidden[layer] for piece in fitted]).float()
        y = torch.cat([piece.scores[layer] for piece in fitted], dim=1).mT
        layers.append(ridge(x, y) if kind == "linear" else mlp(x, y))
        predicted.append([surrogate(layers[-1], piece.hidden[layer].float()) for piece in measured])
    progress("surrogates", len(layers), len(layers))
    tensors = {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    truth = [piece.scores for piece in measured]
    guess = [torch.stack([layer[number] for layer in predicted]) for number in range(len(measured))]
    return Fit(tensors=tensors, measured={"held_out_samples": len(held_out), **_measured(truth, guess)})


def _piece(decoder: Decoder, ids: Sequence[int], target: KVzipOptions, instruct: Instruct | None) -> Piece:
    from vcbench.compressors.kvzip import reconstruction_scores

    prefill = decoder.prefill(ids, chunk=len(ids), statistics=[Hidden()], instruct=instruct)
    scores = reconstruction_scores(prefill, target)[..., target.sinks :]
    hidden = [rows[target.sinks :].cpu() for rows in prefill.statistic(Hidden())]
    return Piece(hidden, scores.clamp(min=LEAST_SCORE).log().cpu())


def surrogate(tensors: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """Log scores [Hk, n] of one layer from its inputs [n, hidden], float32."""
    if "weight" in tensors:
        return torch.addmm(tensors["bias"][:, None], tensors["weight"], hidden.mT)
    inner = torch.nn.functional.gelu(torch.addmm(tensors["bias1"], hidden, tensors["weight1"].mT))
    return torch.addmm(tensors["bias2"][:, None], tensors["weight2"], inner.mT)


def ridge(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Least squares of y: [n, Hk] on x: [n, hidden] with an intercept, weights held down by a share of x's spread."""
    centre, level = x.double().mean(0), y.double().mean(0)
    off = x.double() - centre
    gram = off.mT @ off
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean().clamp(min=1e-12))
    weight = torch.linalg.solve(gram, off.mT @ (y.double() - level)).mT
    return {"weight": weight.float().contiguous(), "bias": (level - weight @ centre).float()}


def mlp(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """W2 gelu(W1 x + b1) + b2 for y: [n, Hk], by AdamW on batches drawn from a fixed seed; x: [n, hidden]."""
    generator = torch.Generator().manual_seed(0)
    (centre, spread), (level, scale) = ((z.mean(0), z.std(0, correction=0).clamp(min=1e-6)) for z in (x, y))
    inputs, targets = (x - centre) / spread, (y - level) / scale
    weights = {
        "weight1": torch.randn((HIDDEN_UNITS, x.shape[1]), generator=generator) * (1 / x.shape[1]) ** 0.5,
        "bias1": torch.zeros(HIDDEN_UNITS),
        "weight2": torch.randn((y.shape[1], HIDDEN_UNITS), generator=generator) * (1 / HIDDEN_UNITS) ** 0.5,
        "bias2": torch.zeros(y.shape[1]),
    }
    for weight in weights.values():
        weight.requires_grad_()
    optimiser = torch.optim.AdamW(weights.values(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _STEPS)
    for _ in range(_STEPS):
        batch = torch.randint(0, len(x), (_BATCH,), generator=generator)
        loss = (surrogate(weights, inputs[batch]).mT - targets[batch]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    w1, b1, w2, b2 = (weight.detach() for weight in weights.values())
    return {
        "weight1": w1 / spread,
        "bias1": b1 - w1 @ (centre / spread),
        "weight2": w2 * scale[:, None],
        "bias2": b2 * scale + level,
    }


def _measured(truth: Sequence[Tensor], guess: Sequence[Tensor]) -> dict[str, Any]:
    """Figures of log scores [L, Hk, T] of held-out texts against those that the surrogate says."""
    rho = torch.stack([rank_correlation(a, b) for a, b in zip(truth, guess, strict=True)]).mean(0)
    shares = {
        f"score_kept_at_{share:g}": [
            float(torch.stack([kept_share(a, by, share) for a, by in zip(truth, by_whom, strict=True)]).mean())
            for by_whom in (guess, truth)
        ]
        for share in KEPT_SHARES
    }
    return {
        "spearman": float(rho.mean()),
        "spearman_lowest": float(rho.min()),
        "spearman_by_layer": [round(float(layer.mean()), 3) for layer in rho],
        **{name: {"surrogate": mine, "target": best} for name, (mine, best) in shares.items()},
    }


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's correlation along the last dimension, ties in order of position; [..., T] to [...]."""
    ranks = [x.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True).double() for x in (a, b)]
    off = [rank - rank.mean(-1, keepdim=True) for rank in ranks]
    below = (off[0].square().sum(-1) * off[1].square().sum(-1)).sqrt().clamp(min=1e-12)
    found: Tensor = (off[0] * off[1]).sum(-1) / below
    return found


def kept_share(log_scores: Tensor, by: Tensor, share: float) -> Tensor:
    """How much of a head's summed score the best `share` of its tokens hold, chosen by `by`; [..., T] to [...]."""
    scores = log_scores.exp()
    best = by.topk(max(1, round(share * by.shape[-1])), dim=-1).indices
    return scores.gather(-1, best).sum(-1) / scores.sum(-1)
