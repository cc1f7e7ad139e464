from __future__ import annotations

from typing import Any

import pytest

from vcbench.models.catalog import known_architecture, known_ids
from vcbench.models.hf_config import parse_architecture
from vcbench.models.shapes import active_parameter_count, expected_shapes, parameter_count


@pytest.mark.parametrize(
    ("model_id", "total", "active", "kv_bytes"),
    [
        ("smollm2-135m", 134_515_008, 134_515_008, 23_040),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 30_532_122_624, 3_353_032_704, 98_304),
        ("mistralai/Mistral-Small-24B-Instruct-2501", 23_572_403_200, 23_572_403_200, 163_840),
        ("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352, 32_763_876_352, 262_144),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496, 70_553_706_496, 327_680),
    ],
)
def test_counts_of_known_models_are_the_published_ones(model_id: str, total: int, active: int, kv_bytes: int) -> None:
    architecture = known_architecture(model_id)

    assert architecture is not None
    assert parameter_count(architecture) == total
    assert active_parameter_count(architecture) == active
    assert architecture.kv_bytes_per_token(2) == kv_bytes


def test_every_known_id_has_a_shape_and_others_have_none() -> None:
    assert all(known_architecture(model_id) is not None for model_id in known_ids())
    assert known_architecture("someone/else") is None


def test_biases_norms_and_head(llama_config: dict[str, Any]) -> None:
    keys = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}

    shapes = expected_shapes(parse_architecture(llama_config | keys))

    assert shapes["model.layers.1.self_attn.k_proj.bias"] == (16,)
    assert shapes["model.layers.1.self_attn.o_proj.bias"] == (32,)
    assert shapes["model.layers.0.mlp.down_proj.bias"] == (32,)
    assert "lm_head.weight" not in shapes
    assert "lm_head.weight" in expected_shapes(parse_architecture(llama_config))


def test_dense_layers_of_a_mixture(llama_config: dict[str, Any]) -> None:
    moe = {"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

    shapes = expected_shapes(parse_architecture(llama_config | moe | {"head_dim": 8, "mlp_only_layers": [0]}))

    assert shapes["model.layers.0.mlp.gate_proj.weight"] == (64, 32)
    assert shapes["model.layers.1.mlp.gate.weight"] == (3, 32)
    assert shapes["model.layers.1.mlp.experts.2.down_proj.weight"] == (32, 16)
    assert shapes["model.layers.1.self_attn.q_norm.weight"] == (8,)
    assert "model.layers.1.mlp.experts.3.down_proj.weight" not in shapes
