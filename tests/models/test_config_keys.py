"""Every key of a config.json is known or refused, and two keys that contradict one another are both named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vcbench.errors import ModelError
from vcbench.models.architecture import Rope
from vcbench.models.catalog import known_architecture
from vcbench.models.hf_config import parse_architecture
from vcbench.models.hf_rope import rope_notes

LLAMA_31: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 128256,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
    "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 49152,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "transformers_version": "4.42.3",
    "use_cache": True, "_commit_hash": "4e20de36",
}  # fmt: skip
QWEN_25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
    "use_cache": True, "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN_3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN_3_CODER: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5472, "max_position_embeddings": 262144, "max_window_layers": 28,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "qkv_bias": False, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 10000000, "router_aux_loss_coef": 0.0, "shared_expert_intermediate_size": 0,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.52.3",
    "use_cache": True, "use_qk_norm": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 32768,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 100000000.0, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.49.0.dev0", "use_cache": True,
    "vocab_size": 131072,
}  # fmt: skip
PUBLISHED = {
    "Llama-3.1-8B-Instruct": LLAMA_31,
    "SmolLM2-135M-Instruct": SMOLLM2,
    "Qwen2.5-0.5B": QWEN_25,
    "Qwen3-8B": QWEN_3,
    "Qwen3-Coder-30B-A3B-Instruct": QWEN_3_CODER,
    "Mistral-Small-24B-Instruct-2501": MISTRAL,
    "an old export": LLAMA_31 | {
        "pad_token_id": -1, "max_sequence_length": 2048, "do_sample": True, "temperature": 0.9, "rope_scaling": None,
        "_name_or_path": "somewhere", "auto_map": None, "id2label": {"0": "LABEL_0"}, "unsloth_version": "2025.1",
        "attn_implementation": "sdpa", "chunk_size_feed_forward": 0, "is_decoder": False, "pruned_heads": {},
    },
    "YaRN by the model card": QWEN_3 | {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "saved by transformers 5": {
        key: value for key, value in QWEN_3.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")
    } | {
        "dtype": "bfloat16", "layer_types": ["full_attention"] * 36,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read(name: str) -> None:
    architecture = parse_architecture(json.loads(json.dumps(PUBLISHED[name])))

    assert architecture.family == PUBLISHED[name]["model_type"]
    assert architecture.max_context >= 2048


def test_the_catalogue_agrees_with_the_published_files() -> None:
    assert known_architecture("Qwen/Qwen3-Coder-30B-A3B-Instruct") == parse_architecture(QWEN_3_CODER)
    assert known_architecture("mistralai/Mistral-Small-24B-Instruct-2501") == parse_architecture(MISTRAL)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe"])
def test_what_transformers_writes_is_read(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, architectures=None)
    written = json.loads(config.to_json_string(use_diff=False)) | {"sliding_window": None}

    assert parse_architecture(written).family == family


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("is_causal", False),
        ("auto_map", {"AutoModelForCausalLM": "modeling_x.X"}),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 0.0625),
        ("attention_multiplier", 0.5),
        ("embedding_multiplier", 12),
        ("residual_multiplier", 0.22),
        ("rope_interleaved", True),
        ("rotary_pct", 0.25),
        ("use_bidirectional_attention", True),
        ("use_mrope", True),
        ("use_qk_norm", True),
        ("qkv_bias", True),
        ("layer_norm_eps", 1e-5),
        ("num_kv_heads", 2),
        ("text_config", {"hidden_size": 64}),
        ("dual_chunk_attention_config", {"chunk_size": 8}),
        ("no_rope_layers", [1, 0]),
        ("attention_chunk_size", 16),
        ("is_encoder_decoder", True),
        ("chunk_size_feed_forward", 2),
        ("pruned_heads", {"0": [1]}),
        ("per_layer_config", {"0": {}}),
        ("num_experts", 8),
        ("n_shared_experts", 1),
        ("something_new", 1),
        ("scale_depth", 1.4),
    ],
)
def test_a_key_that_may_change_the_arithmetic_is_refused(llama_config: dict[str, Any], key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"may change what the model computes: '?{key}'? ") as caught:
        parse_architecture(llama_config | {key: value})
    assert "\n" not in str(caught.value)
    assert parse_architecture(llama_config | {key: None}) == parse_architecture(llama_config)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("mistral", "attention_bias", True),
        ("qwen2", "attention_bias", False),
        ("qwen2", "mlp_bias", True),
        ("qwen3", "mlp_bias", True),
        ("qwen3_moe", "use_qk_norm", False),
        ("llama", "use_sliding_window", True),
    ],
)
def test_a_key_that_the_family_fixes(llama_config: dict[str, Any], family: str, key: str, value: bool) -> None:
    base = llama_config | {"model_type": family, "sliding_window": None}
    parse_architecture(base | {key: not value})

    with pytest.raises(ModelError, match=rf"{key} {value} \(supported for {family}: {not value}\)"):
        parse_architecture(base | {key: value})


def test_all_unknown_keys_are_named_at_once(llama_config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"'one' 1 \(unknown\); is_causal False \(supported: True\); 'two' 'x'"):
        parse_architecture(llama_config | {"one": 1, "is_causal": False, "two": "x"})


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
MOE = {"model_type": "qwen3_moe", "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("keys", "one", "other"),
    [
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "yarn", "factor": 4}},
            "rope_scaling is .*yarn",
            "rope_parameters is .*default",
        ),
        ({"rope_parameters": YARN, "rope_scaling": YARN | {"factor": 2.0}}, "rope_scaling is .*2.0", "4.0"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta is 1000000.0", "is 10000.0"),
        ({"rope_theta": 1e4, "rope_scaling": YARN | {"rope_theta": 5e5}}, "rope_theta is 500000.0", "10000.0"),
        ({"rope_scaling": YARN | {"type": "linear"}}, "rope_scaling.rope_type is 'yarn'", "type is 'linear'"),
        (
            {"rope_scaling": YARN, "original_max_position_embeddings": 64},
            "original_max_position_embeddings is 32",
            "original_max_position_embeddings is 64",
        ),
        ({"rope_scaling": {"partial_rotary_factor": 1}, "partial_rotary_factor": 0.5}, "is 1", "is 0.5"),
        ({"rope_scaling": YARN | {"beta_fast": 1, "beta_slow": 32}}, "beta_slow is 32.0", "beta_fast is '1.0"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "dtype is 'float16'", "torch_dtype is 'bfloat16'"),
        (MOE | {"num_experts": 4, "num_local_experts": 8}, "num_experts is 4", "num_local_experts is 8"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "architectures is", "model_type is 'llama'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "SequenceClassification", "model_type is 'llama'"),
        ({"layer_types": ["full_attention"]}, "layer_types is '1 layers'", "num_hidden_layers is 2"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'", "use_sliding_window is None"),
        (
            {
                "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1,
                "layer_types": ["full_attention"] * 2,
            },
            "layer_types is ",
            "max_window_layers is 1",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_refused_with_both_values(
    llama_config: dict[str, Any], keys: dict[str, Any], one: str, other: str
) -> None:
    with pytest.raises(ModelError, match=f"contradicts itself: .*{one}.* and .*{other}.*; remove the one"):
        parse_architecture(llama_config | keys)


@pytest.mark.parametrize(
    "keys",
    [
        {
            "rope_parameters": YARN,
            "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32},
        },
        {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1000000}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "default", "type": "default"}},
        {"rope_scaling": {}, "rope_parameters": YARN},
        {"rope_scaling": {"type": "default", "factor": 1.0}},
        {"dtype": "torch.float16", "torch_dtype": "float16"},
        {"dtype": None, "torch_dtype": "float16"},
        {"layer_types": ["full_attention"] * 2},
        {"rope_scaling": YARN | {"finetuned": True}},
    ],
)
def test_what_says_the_same_twice_is_read(llama_config: dict[str, Any], keys: dict[str, Any]) -> None:
    parse_architecture(llama_config | keys)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rope_type": "default", "factor": 4.0}, "factor 4.0 is not supported for the rope type 'default'"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, "mrope_section .* is not supported"),
        (YARN | {"attn_factor": 0.5}, "attn_factor 0.5 is not supported"),
        (YARN | {"short_factor": [1.0]}, "short_factor"),
    ],
)
def test_unknown_rotary_parameters_are_refused(
    llama_config: dict[str, Any], table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        parse_architecture(llama_config | {"rope_scaling": table})


def test_a_factor_that_the_lengths_do_not_give_is_said() -> None:
    keys = {"max_position_embeddings": 40960}
    rope = Rope(kind="yarn", factor=4.0, original_max_position=32768)

    assert rope_notes(keys, rope) == [
        "config.json: rope factor 4 of 32768 positions is followed, as in transformers, though "
        "max_position_embeddings 40960 gives 1.25"
    ]
    assert rope_notes({"max_position_embeddings": 32768}, rope) == []
    assert rope_notes({"max_position_embeddings": 131072}, rope) == []


HUGE = 10**400


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; supported: at most 4,096"),
        ({"hidden_size": 2**40}, "hidden_size is .*; supported: at most"),
        ({"vocab_size": 10**12}, "vocab_size is .*; supported: at most"),
        ({"intermediate_size": HUGE}, "intermediate_size is 1000.*; supported: at most"),
        ({"num_attention_heads": 10**9}, "num_attention_heads is"),
        ({"num_key_value_heads": 10**9}, "num_key_value_heads is"),
        ({"head_dim": 10**9}, "head_dim is"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings is"),
        ({"max_position_embeddings": float("inf")}, "max_position_embeddings is inf"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf; supported: at most 1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; expected a positive number"),
        ({"rms_norm_eps": HUGE}, "rms_norm_eps is 1000.*; supported: at most 1"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'; expected a positive number"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": 1}, "rope_theta is 1; expected a number above 1"),
        ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, "factor is inf"),
        ({"rope_scaling": YARN | {"factor": 1e300}}, r"factor is 1e\+300"),
        ({"rope_scaling": YARN | {"factor": 1e6, "original_max_position_embeddings": 10**6}}, "context is"),
        ({"rope_scaling": YARN | {"truncate": "no"}}, "truncate is 'no'; expected true or false"),
        ({"rope_scaling": YARN | {"attention_factor": float("nan")}}, "attention_factor is nan"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; expected true or false"),
        ({"attention_bias": 1}, "attention_bias is 1; expected true or false"),
        ({"model_type": "qwen2", "use_sliding_window": "false"}, "use_sliding_window is 'false'"),
        ({"model_type": "mistral", "sliding_window": True}, "sliding_window is True"),
        ({"sliding_window": 16}, "a sliding window of 16 tokens is active"),
        (MOE | {"num_experts": 10**9}, "num_experts is"),
        (MOE | {"num_experts": 16384, "num_hidden_layers": 4096}, "experts in all"),
        (MOE | {"mlp_only_layers": [9]}, "mlp_only_layers is \\[9\\]; expected a list of layers below 2"),
        (MOE | {"mlp_only_layers": "all"}, "mlp_only_layers is 'all'"),
        ({"eos_token_id": 96}, "config.json: eos_token_id holds 96, but the vocabulary has 96 tokens"),
        ({"eos_token_id": HUGE}, "eos_token_id holds 1000"),
        ({"model_type": ["llama"]}, "model_type \\['llama'\\] is not supported"),
        ({"hidden_act": {"a": 1}}, "hidden_act .* is not supported"),
        ({"architectures": "LlamaForCausalLM"}, "contradicts itself"),
        ({"layer_types": 3}, "layer_types is 3; expected a list"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types holds 'chunked_attention'"),
    ],
)
def test_numbers_and_types_have_bounds(llama_config: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        parse_architecture(llama_config | keys)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
