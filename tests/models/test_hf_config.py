from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from vcbench.errors import ModelError
from vcbench.models.architecture import Rope
from vcbench.models.config_values import token_ids
from vcbench.models.hf_config import parse_architecture


def test_llama(llama_config: dict[str, Any]) -> None:
    architecture = parse_architecture(llama_config)

    assert dataclasses.asdict(architecture) | {"rope": None} == {
        "family": "llama",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "norm_eps": 1e-5,
        "max_context": 128,
        "rope": None,
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "tied_embeddings": False,
        "experts": None,
        "bos_id": None,
        "eos_ids": frozenset({2}),
    }


@pytest.mark.parametrize(
    ("family", "attention_bias", "qkv_bias", "output_bias", "qk_norm"),
    [
        ("llama", True, True, True, False),
        ("mistral", False, False, False, False),
        ("qwen2", True, True, False, False),
        ("qwen3", True, True, True, True),
        ("qwen3", False, False, False, True),
        ("qwen3_moe", True, True, True, True),
    ],
)
def test_biases_and_norms_of_each_family(
    llama_config: dict[str, Any],
    family: str,
    attention_bias: bool,
    qkv_bias: bool,
    output_bias: bool,
    qk_norm: bool,
) -> None:
    config = llama_config | {"model_type": family, "attention_bias": attention_bias, "sliding_window": None}

    architecture = parse_architecture(config)

    assert (architecture.qkv_bias, architecture.output_bias, architecture.qk_norm) == (qkv_bias, output_bias, qk_norm)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("keys", "rope", "max_context"),
    [
        ({}, Rope(), 128),
        ({"rope_theta": 5e5, "rope_scaling": None}, Rope(theta=5e5), 128),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, Rope(theta=5e5), 128),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}, Rope(theta=5e5), 128),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope(kind="linear", factor=2.0), 128),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            Rope(theta=5e5, kind="llama3", factor=8.0, original_max_position=64),
            128,
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
            Rope(kind="yarn", factor=4.0, original_max_position=128),
            512,
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e6,
                    "factor": 2.0,
                    "truncate": False,
                    "mscale": 1,
                }
            },
            Rope(theta=1e6, kind="yarn", factor=2.0, original_max_position=128, truncate=False, mscale=1.0),
            256,
        ),
        (
            {"original_max_position_embeddings": 32, "rope_scaling": {"type": "yarn", "beta_fast": 16}},
            Rope(kind="yarn", factor=4.0, original_max_position=32, beta_fast=16.0),
            128,
        ),
    ],
)
def test_rope_old_and_new_style(
    llama_config: dict[str, Any], keys: dict[str, Any], rope: Rope, max_context: int
) -> None:
    architecture = parse_architecture(llama_config | keys)

    assert architecture.rope == rope
    assert architecture.max_context == max_context


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "gemma3"}, "'gemma3' is not supported; supported: llama, mistral, qwen2, qwen3, qwen3_moe"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"model_type": "mistral", "sliding_window": 64}, "a sliding window of 64 tokens is active"),
        ({"model_type": "mistral", "max_position_embeddings": 8192}, "a sliding window of 4096 tokens is active"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding"),
        ({"model_type": "qwen3_moe", "use_sliding_window": True, "sliding_window": 64}, "sliding"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not supported; supported: def"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ by layer type"),
        ({"rope_scaling": {"type": "linear"}}, "the rope parameters lack factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "the rope parameters lack low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor is -1; expected a positive number"),
        ({"rope_scaling": "yarn"}, "expected a mapping"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 6}, "hidden_size 32 is not a multiple of num_attention_heads 6"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; expected an integer of at least 1"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"hidden_size": None}, "config.json lacks hidden_size"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised \\(quantization_config: 'awq'\\)"),
        ({"eos_token_id": "</s>"}, "eos_token_id holds '</s>'"),
        ({"eos_token_id": [2, -1]}, "eos_token_id holds -1"),
        ({"bos_token_id": [1, 2]}, "bos_token_id lists 2 ids"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok 8 is more than"),
        (
            {"model_type": "qwen2", "num_key_value_heads": None, "num_attention_heads": None},
            "lacks num_attention_heads",
        ),
    ],
)
def test_refused_by_name(llama_config: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_architecture(llama_config | keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 128},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 16},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
        {
            "model_type": "qwen3",
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["full_attention"] * 2,
        },
    ],
)
def test_sliding_windows_that_hide_nothing_are_accepted(llama_config: dict[str, Any], keys: dict[str, Any]) -> None:
    assert parse_architecture(llama_config | keys).max_context == 128


def test_kv_heads_default_to_query_heads_for_llama_only(llama_config: dict[str, Any]) -> None:
    del llama_config["num_key_value_heads"]

    assert parse_architecture(llama_config).n_kv_heads == 4
    with pytest.raises(ModelError, match="lacks num_key_value_heads"):
        parse_architecture(llama_config | {"model_type": "mistral", "sliding_window": None})


def test_qwen3_head_dim_defaults_to_128(llama_config: dict[str, Any]) -> None:
    assert parse_architecture(llama_config | {"model_type": "qwen3"}).head_dim == 128
    assert parse_architecture(llama_config | {"model_type": "qwen3", "head_dim": 16}).head_dim == 16


@pytest.mark.parametrize(
    ("keys", "dense"),
    [
        ({}, frozenset()),
        ({"mlp_only_layers": [1]}, {1}),
        ({"decoder_sparse_step": 2}, {0, 2}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, {0, 2, 3}),
        ({"num_experts": 0}, None),
        ({"mlp_only_layers": [0, 1, 2, 3]}, None),
    ],
)
def test_experts(llama_config: dict[str, Any], keys: dict[str, Any], dense: set[int] | None) -> None:
    moe = {"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}
    moe |= {"moe_intermediate_size": 16, "norm_topk_prob": True}

    experts = parse_architecture(llama_config | moe | keys).experts

    if dense is None:
        assert experts is None
    else:
        assert experts is not None
        assert experts.dense_layers == dense
        assert (experts.count, experts.per_token, experts.intermediate_size, experts.normalise) == (8, 2, 16, True)


def test_stop_ids_may_be_one_several_or_none() -> None:
    assert token_ids({"eos_token_id": 3}, "eos_token_id") == {3}
    assert token_ids({"eos_token_id": [3, 4]}, "eos_token_id") == {3, 4}
    assert token_ids({"eos_token_id": None}, "eos_token_id") == set()
    assert token_ids({}, "eos_token_id") == set()
