"""How sensitive a model's loss is to its keys and values: gradients of the next-token loss, layer by layer.

The engine's kernels have no gradients, so the same computation is written here in torch operations. One layer at a
time is differentiated, from inputs kept by a first pass without gradients: memory is that of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.engine.model.decoder import Decoder, Layer
from vcbench.engine.model.linear import Linear
from vcbench.engine.model.mlp import DenseMLP, FeedForward, SparseMLP
from vcbench.engine.rope import rotated

_LOGIT_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """A layer's pre-RoPE keys and values of one sample and the loss's gradients: all [T, Hk, D], float32.

    On a model with QK-norm, keys are those after it.
    """

    layer: int
    keys: Tensor
    values: Tensor
    key_gradients: Tensor
    value_gradients: Tensor


def key_value_gradients(decoder: Decoder, ids: Sequence[int], take: Callable[[Sensitivity], None]) -> float:
    """Shows `take` each layer, the last one first, and returns the mean loss in nats per token.

    The loss is the sum over positions of the cross entropy of the token that follows. Cost: about three forward passes.
    """
    with torch.no_grad():
        tokens = torch.tensor(list(ids), device=decoder.shape.device)
        x = decoder.weights.embedding[tokens]
        decoder.rope.reserve(len(ids))
        inputs = []
        for layer in decoder.weights.layers:
            inputs.append(x)
            x = _layer_output(decoder, layer, x)[0]
        loss, gradient = _loss(decoder, x, tokens)
    for index in reversed(range(len(inputs))):
        gradient = _layer_backward(decoder, index, inputs.pop(), gradient, take)
    return loss / max(1, len(ids) - 1)


def _layer_backward(
    decoder: Decoder, index: int, x: Tensor, gradient: Tensor, take: Callable[[Sensitivity], None]
) -> Tensor:
    """The gradient at the layer's input from that at its output."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        out, keys, values = _layer_output(decoder, decoder.weights.layers[index], x)
        found = torch.autograd.grad(out, [x, keys, values], gradient)
    take(
        Sensitivity(
            layer=index,
            keys=keys.detach().float(),
            values=values.detach().float(),
            key_gradients=found[1].float(),
            value_gradients=found[2].float(),
        )
    )
    return found[0]


def _loss(decoder: Decoder, x: Tensor, tokens: Tensor) -> tuple[float, Tensor]:
    """The summed loss and its gradient at the last layer's output, some rows at a time."""
    total, gradients = 0.0, []
    for start in range(0, x.shape[0], _LOGIT_ROWS):
        with torch.enable_grad():
            rows = x[start : start + _LOGIT_ROWS].detach().requires_grad_()
            targets = tokens[start + 1 : start + 1 + _LOGIT_ROWS]
            normed = rms_norm(rows, decoder.weights.norm, decoder.architecture.norm_eps)
            logits = product(normed, decoder.weights.head)[: len(targets)]
            loss = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
            gradients.append(torch.autograd.grad(loss, rows)[0])
        total += float(loss)
    return total, torch.cat(gradients)


def _layer_output(decoder: Decoder, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output [T, hidden], pre-RoPE keys and values [T, Hk, D] of a layer over a whole sample."""
    a = decoder.architecture
    sizes = [a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim, a.n_kv_heads * a.head_dim]
    qkv = product(rms_norm(x, layer.attention_norm, a.norm_eps), layer.qkv)
    queries, keys, values = (part.unflatten(1, (-1, a.head_dim)) for part in qkv.split(sizes, dim=1))
    if layer.query_norm is not None and layer.key_norm is not None:
        queries, keys = rms_norm(queries, layer.query_norm, a.norm_eps), rms_norm(keys, layer.key_norm, a.norm_eps)
    cos, sin = decoder.rope.cos[: len(x), None], decoder.rope.sin[: len(x), None]
    q, k = (rotated(y, cos, sin).to(x.dtype) for y in (queries, keys))
    q, k, v = (y.transpose(0, 1)[None] for y in (q, k, values))
    group = a.n_heads // a.n_kv_heads
    mixed = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=True
    )
    x = x + product(mixed[0].transpose(0, 1).flatten(1), layer.output)
    return x + feed_forward(layer.mlp, rms_norm(x, layer.mlp_norm, a.norm_eps)), keys, values


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x over the root mean square of its last dimension, times the weight."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def feed_forward(mlp: FeedForward, x: Tensor) -> Tensor:
    """The output of a layer's feed-forward part. Raises TypeError for a kind that is not known here."""
    if isinstance(mlp, DenseMLP):
        gate, up = product(x, mlp.gate_up).chunk(2, dim=-1)
        return product(torch.nn.functional.silu(gate) * up, mlp.down)
    if not isinstance(mlp, SparseMLP):
        raise TypeError(f"no gradient is known for {type(mlp).__name__}")
    shares = torch.softmax(product(x, mlp.router).float(), dim=-1)
    weights, chosen = torch.topk(shares, mlp.options.per_token, dim=-1)
    if mlp.options.normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for index in torch.unique(chosen).tolist():
        rows, slots = torch.where(chosen == index)
        part = feed_forward(mlp.experts[index], x[rows]) * weights[rows, slots, None].to(x.dtype)
        out = out.index_add(0, rows, part)
    return out


def product(x: Tensor, linear: Linear) -> Tensor:
    """linear(x), with a gradient for x: [T, in]."""
    result: Tensor = _Product.apply(x, linear)  # type: ignore[no-untyped-call]
    return result


class _Product(torch.autograd.Function):
    """The engine's own product forward; the weights are unpacked for a moment to go backward."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, linear: Linear) -> Tensor:
        ctx.linear = linear  # type: ignore[attr-defined]
        return linear(x.detach())

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.linear.weight(), None  # type: ignore[attr-defined]
