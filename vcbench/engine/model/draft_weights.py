"""The same model with narrower weights, to draft with: verification decides, so a draft may round.

Every linear layer but the router of a mixture of experts is rounded; embedding, norms, rotary table and caches are the
exact model's own. What it is for and what it costs: "Cheaper drafts" in `docs/architecture.md`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vcbench.config.schema import DraftWeights
from vcbench.engine.kernels.cpu import matmul as blocks
from vcbench.engine.kernels.cpu.narrow_matmul import narrow_linear, products_of
from vcbench.engine.model.decoder import Decoder, Layer, Weights
from vcbench.engine.model.linear import BlockedLinear, Linear

_LARGEST = 127
"""Of a signed 8-bit code; -128 is not used, so that codes are symmetric."""


class NarrowLinear(Linear):
    """y = x W^T + b with W rounded to int8, one scale an output, or to bfloat16; CPU, float32 activations and sums."""

    def __init__(self, exact: BlockedLinear, kind: DraftWeights) -> None:
        """Rounds the weights of an exact layer; its bias stays as it is."""
        weight = exact.weight()
        self.outputs, inputs = weight.shape
        self.bias = exact.bias
        padded = torch.nn.functional.pad(weight, (0, 0, 0, -self.outputs % blocks.OUTPUTS))
        codes, self.scale = _rounded(padded, kind)
        self.size = codes.element_size()
        self._products = products_of(self.size)
        lines = codes.view(-1, blocks.OUTPUTS, inputs).transpose(1, 2).contiguous()
        self._codes = lines.view(torch.uint8).numpy()

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((x.shape[0], self.outputs))
        narrow_linear(x.contiguous().numpy(), self._codes, self.scale.numpy(), self.bias, self._products, out.numpy())
        return out

    def weight(self) -> Tensor:
        dtype = torch.int8 if self.size == 1 else torch.bfloat16
        lines = torch.from_numpy(self._codes).view(dtype).transpose(1, 2).flatten(0, 1)
        return (lines.float() * self.scale[:, None])[: self.outputs]

    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self._codes.nbytes + self.scale.nbytes


def _rounded(weight: Tensor, kind: DraftWeights) -> tuple[Tensor, Tensor]:
    """Codes: [outputs, inputs], and the scale of each output: what a code counts."""
    if kind == "bfloat16":
        return weight.bfloat16(), torch.ones(weight.shape[0])
    scale = weight.abs().amax(dim=1) / _LARGEST
    codes = torch.round(weight / torch.where(scale > 0, scale, 1.0)[:, None])
    return codes.clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


def drafting(exact: Decoder, kind: DraftWeights) -> Decoder:
    """The model to draft with, made once. Cost: one pass over the weights, and a copy of them in 1 or 2 bytes each.

    Raises ValueError where weights are not float32 on CPU: there they are 16 bits wide or in another order already.
    """
    if kind == "full":
        return exact
    if kind not in exact.narrowed:
        exact.narrowed[kind] = exact.with_weights(_narrowed(exact.weights, kind))
    return exact.narrowed[kind]


def bytes_beside(exact: Decoder) -> dict[str, int]:
    """Bytes of the narrower weights that lie beside a model's own, by kind."""
    return {
        kind: sum(layer.nbytes() for layer in decoder.weights.linears() if isinstance(layer, NarrowLinear))
        for kind, decoder in exact.narrowed.items()
    }


def _narrowed(weights: Weights, kind: DraftWeights) -> Weights:
    def narrow(layer: Linear) -> Linear:
        if not isinstance(layer, BlockedLinear):
            raise ValueError(f"draft_weights: {kind} needs a model in float32 on CPU")
        return NarrowLinear(layer, kind)

    def narrowed_layer(layer: Layer) -> Layer:
        return replace(layer, qkv=narrow(layer.qkv), output=narrow(layer.output), mlp=layer.mlp.mapped(narrow))

    return replace(weights, layers=[narrowed_layer(layer) for layer in weights.layers], head=narrow(weights.head))
