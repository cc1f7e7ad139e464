"""Tiny seeded models of every supported family, made by transformers, and our decoder of the same checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from vcbench.config.schema import Exactness
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.model.load import load_decoder
from vcbench.models.hf_config import parse_architecture
from vcbench.models.weights import WeightReader

VOCABULARY = 131
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
ORIGINAL_CONTEXT = 64
"""Short enough that every scaling of the rotary embedding acts on the tests' prompts."""
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0}
MIXTURE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_hidden_layers": 3}


@dataclass(frozen=True)
class Case:
    """A family and what is particular about one model of it; `rope` is completed with theta and the old context."""

    name: str
    family: str
    options: dict[str, Any] = field(default_factory=dict)
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    fused_experts: bool = False


CASES = (
    Case("llama", "Llama"),
    Case("llama-head20-bias-tied", "Llama", {
        "hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 1, "attention_bias": True,
        "mlp_bias": True, "tie_word_embeddings": True,
    }),
    Case("llama-head64-llama3", "Llama", {"head_dim": 64, "num_key_value_heads": 1}, LLAMA3),
    Case("llama-linear", "Llama", {"head_dim": 32}, {"rope_type": "linear", "factor": 4.0}),
    Case("mistral-head20", "Mistral", {"head_dim": 20, "sliding_window": None}),
    Case("mistral-mha-yarn", "Mistral", {"num_key_value_heads": 4, "head_dim": 16, "sliding_window": None}, YARN),
    Case("qwen2-tied", "Qwen2", {"tie_word_embeddings": True}),
    Case("qwen2-five-to-one-yarn", "Qwen2", {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 1},
         {**YARN, "attention_factor": 0.8}),
    Case("qwen3-head128", "Qwen3", {"head_dim": 128, "tie_word_embeddings": True}),
    Case("qwen3-head64-bias-yarn", "Qwen3", {"head_dim": 64, "attention_bias": True},
         {**YARN, "beta_fast": 24.0, "beta_slow": 2.0, "truncate": False}),
    Case("qwen3-moe-normalised", "Qwen3Moe", {**MIXTURE, "norm_topk_prob": True, "head_dim": 20}),
    Case("qwen3-moe-plain-dense-layer", "Qwen3Moe", {
        **MIXTURE, "norm_topk_prob": False, "mlp_only_layers": [1], "head_dim": 64, "attention_bias": True,
    }, fused_experts=True),
    Case("qwen3-moe-sparse-step", "Qwen3Moe", {
        **MIXTURE, "norm_topk_prob": True, "decoder_sparse_step": 2, "num_experts_per_tok": 3, "head_dim": 32,
    }),
)  # fmt: skip


def save_model(case: Case, directory: Path) -> PreTrainedModel:
    """The case's model in float32 with eager attention; it is also written to `directory`."""
    rope = {"rope_theta": 1000.0, **case.rope}
    if case.rope["rope_type"] in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = ORIGINAL_CONTEXT
    config_class: type[PretrainedConfig] = getattr(transformers, case.family + "Config")
    config = config_class(**{**COMMON, **case.options, "rope_parameters": rope}, attn_implementation="eager")
    model_class: type[PreTrainedModel] = getattr(transformers, case.family + "ForCausalLM")
    model = model_class(config).eval().requires_grad_(False)
    randomise(model)
    model.save_pretrained(directory, save_original_format=not case.fused_experts)
    return model


def load_reference(case: Case, directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' model of a checkpoint in another precision."""
    model_class: type[PreTrainedModel] = getattr(transformers, case.family + "ForCausalLM")
    model = model_class.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    return model.eval().requires_grad_(False)


def randomise(model: PreTrainedModel) -> None:
    """Weights large enough for logits that differ, norms and biases away from 1 and 0."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.copy_(1 + 0.2 * drawn)
        elif name.endswith("bias") or "embed_tokens" in name:
            parameter.copy_(0.3 * drawn)
        else:
            parameter.copy_(1.5 * drawn / parameter.shape[-1] ** 0.5)


def load(directory: Path, *, dtype: torch.dtype = torch.float32, exactness: Exactness = "bitwise") -> Decoder:
    """Our decoder of a checkpoint on CPU."""
    architecture = parse_architecture(json.loads((directory / "config.json").read_text()))
    with WeightReader(directory) as reader:
        reader.check_complete(architecture)
        decoder, _ = load_decoder(architecture, reader, device=torch.device("cpu"), dtype=dtype, exactness=exactness)
    return decoder


def token_ids(count: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()


def reference_logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """transformers' logits after each token, [len(ids), V], float32."""
    logits: Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits
