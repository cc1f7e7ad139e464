"""Names and shapes of a decoder's tensors, as Hugging Face checkpoints call them, and the counts that follow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from vcbench.models.architecture import Architecture

Shape = tuple[int, ...]


def expected_shapes(architecture: Architecture) -> dict[str, Shape]:
    """Every tensor of the decoder in checkpoint order, experts one by one; `lm_head.weight` unless it is tied.

    Shapes: matrices are [out, in].
    """
    hidden, vocab = architecture.hidden_size, architecture.vocab_size
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(architecture.n_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes.update(_attention(architecture, f"{prefix}.self_attn"))
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        shapes.update(_mlp(architecture, layer, f"{prefix}.mlp"))
    shapes["model.norm.weight"] = (hidden,)
    if not architecture.tied_embeddings:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def is_sparse(architecture: Architecture, layer: int) -> bool:
    """Whether the layer's MLP is a mixture of experts."""
    return architecture.experts is not None and layer not in architecture.experts.dense_layers


@cache
def parameter_count(architecture: Architecture) -> int:
    """Parameters in all; tied embeddings count once."""
    return sum(math.prod(shape) for shape in expected_shapes(architecture).values())


def active_parameter_count(architecture: Architecture) -> int:
    """Parameters that one token passes through: of a mixture's experts, only the chosen ones."""
    experts = architecture.experts
    total = parameter_count(architecture)
    if experts is None:
        return total
    sparse_layers = architecture.n_layers - len(experts.dense_layers)
    one_expert = 3 * architecture.hidden_size * experts.intermediate_size
    return total - sparse_layers * (experts.count - experts.per_token) * one_expert


def _attention(architecture: Architecture, prefix: str) -> Iterator[tuple[str, Shape]]:
    hidden, head_dim = architecture.hidden_size, architecture.head_dim
    query, key = architecture.n_heads * head_dim, architecture.n_kv_heads * head_dim
    for name, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
        yield from _linear(f"{prefix}.{name}", rows, hidden, bias=architecture.qkv_bias)
    yield from _linear(f"{prefix}.o_proj", hidden, query, bias=architecture.output_bias)
    if architecture.qk_norm:
        yield f"{prefix}.q_norm.weight", (head_dim,)
        yield f"{prefix}.k_norm.weight", (head_dim,)


def _mlp(architecture: Architecture, layer: int, prefix: str) -> Iterator[tuple[str, Shape]]:
    experts = architecture.experts
    if experts is None or layer in experts.dense_layers:
        yield from _gated(architecture, prefix, architecture.intermediate_size, bias=architecture.mlp_bias)
        return
    yield f"{prefix}.gate.weight", (experts.count, architecture.hidden_size)
    for expert in range(experts.count):
        yield from _gated(architecture, f"{prefix}.experts.{expert}", experts.intermediate_size, bias=False)


def _gated(architecture: Architecture, prefix: str, inner: int, *, bias: bool) -> Iterator[tuple[str, Shape]]:
    hidden = architecture.hidden_size
    for name, rows, columns in (("gate_proj", inner, hidden), ("up_proj", inner, hidden), ("down_proj", hidden, inner)):
        yield from _linear(f"{prefix}.{name}", rows, columns, bias=bias)


def _linear(prefix: str, rows: int, columns: int, *, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.weight", (rows, columns)
    if bias:
        yield f"{prefix}.bias", (rows,)
