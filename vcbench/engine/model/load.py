"""Builds a decoder from weights on disk (or anywhere that gives tensors by their Hugging Face names)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vcbench.config.schema import Exactness
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Decoder, Layer, Weights
from vcbench.engine.model.linear import BlockedLinear, Linear, RowMode, TiledLinear
from vcbench.engine.model.mlp import DenseMLP, FeedForward, SparseMLP
from vcbench.engine.model.row_operations import CpuRows, RowOperations, TorchRows
from vcbench.models.architecture import Architecture

ROW_TILE = 32


class TensorSource(Protocol):
    """Tensors by name; `expert` gives gate, up and down of one expert whatever the file's layout."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""

    def expert(self, layer: int, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """gate, up: [intermediate, hidden]; down: [hidden, intermediate]."""


def load_decoder(
    architecture: Architecture,
    source: TensorSource,
    *,
    device: torch.device,
    dtype: torch.dtype,
    exactness: Exactness,
) -> tuple[Decoder, dict[str, int]]:
    """The decoder and, at `bitwise`, the row tiles that the probe chose by layer shape (none for CPU float32).

    Raises InexactError when `bitwise` cannot be had on this device, ModelError on damaged weights.
    """
    shape = KVShape(
        n_layers=architecture.n_layers,
        n_heads=architecture.n_heads,
        n_kv_heads=architecture.n_kv_heads,
        head_dim=architecture.head_dim,
        dtype=dtype,
        device=device,
    )
    builder = _Builder(architecture, source, device, dtype, exactness)
    decoder = Decoder(architecture, builder.weights(), builder.rows, shape, builder.mode)
    return decoder, decoder.set_tiles() if exactness == "bitwise" else {}


class _Builder:
    """Reads, converts and fuses the tensors of one model."""

    def __init__(
        self,
        architecture: Architecture,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        exactness: Exactness,
    ) -> None:
        self.architecture, self.source, self.device, self.dtype = architecture, source, device, dtype
        self.mode = RowMode()
        self.rows: RowOperations
        if device.type == "cpu" and dtype == torch.float32:
            self.rows = CpuRows()
        else:
            self.rows = TorchRows(ROW_TILE if exactness == "bitwise" else 0, self.mode)

    def weights(self) -> Weights:
        embedding = self.get("model.embed_tokens.weight")
        tied = self.architecture.tied_embeddings
        return Weights(
            embedding=embedding,
            layers=[self.layer(index) for index in range(self.architecture.n_layers)],
            norm=self.get("model.norm.weight"),
            head=self.fused([embedding if tied else self.get("lm_head.weight")], []),
        )

    def layer(self, index: int) -> Layer:
        a, prefix = self.architecture, f"model.layers.{index}."
        attention = prefix + "self_attn."
        return Layer(
            attention_norm=self.get(prefix + "input_layernorm.weight"),
            qkv=self.linear([attention + f"{name}_proj" for name in "qkv"], a.qkv_bias),
            output=self.linear([attention + "o_proj"], a.output_bias),
            mlp_norm=self.get(prefix + "post_attention_layernorm.weight"),
            mlp=self.feed_forward(index, prefix + "mlp."),
            query_norm=self.get(attention + "q_norm.weight") if a.qk_norm else None,
            key_norm=self.get(attention + "k_norm.weight") if a.qk_norm else None,
        )

    def feed_forward(self, index: int, prefix: str) -> FeedForward:
        a = self.architecture
        if a.experts is None or index in a.experts.dense_layers:
            gate_up = self.linear([prefix + "gate_proj", prefix + "up_proj"], a.mlp_bias)
            return DenseMLP(gate_up, self.linear([prefix + "down_proj"], a.mlp_bias), self.rows)
        experts = []
        for expert in range(a.experts.count):
            gate, up, down = (self.place(tensor) for tensor in self.source.expert(index, expert))
            experts.append(DenseMLP(self.fused([gate, up], []), self.fused([down], []), self.rows))
        return SparseMLP(self.linear([prefix + "gate"], False), experts, a.experts, self.rows)

    def linear(self, names: list[str], bias: bool) -> Linear:
        """One layer from the concatenated weights of several."""
        weights = [self.get(name + ".weight") for name in names]
        return self.fused(weights, [self.get(name + ".bias") for name in names] if bias else [])

    def fused(self, weights: list[Tensor], biases: list[Tensor]) -> Linear:
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        bias = torch.cat(biases) if biases else None
        if isinstance(self.rows, CpuRows):
            return BlockedLinear(weight, bias)
        return TiledLinear(weight, bias, self.mode)

    def get(self, name: str) -> Tensor:
        return self.place(self.source.tensor(name))

    def place(self, tensor: Tensor) -> Tensor:
        placed = tensor.to(device=self.device, dtype=self.dtype)
        # A view of the file would follow whatever is written to it while the run goes on.
        return tensor.clone() if placed is tensor else placed
