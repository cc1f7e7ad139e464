"""Which keys of a `config.json` are known, and which pairs of them must agree; every other key is refused by name.

A key that this decoder does not know may change what the model computes, so it is never passed over. Keys that do not
(names, training, other tasks, generation, which `generation.py` reads) are listed here once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vcbench.errors import ModelError
from vcbench.models.config_values import shown

READ = frozenset({
    "architectures", "attention_bias", "bos_token_id", "dtype", "eos_token_id", "head_dim", "hidden_act",
    "hidden_size", "intermediate_size", "layer_types", "max_position_embeddings", "max_window_layers", "mlp_bias",
    "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "original_max_position_embeddings", "partial_rotary_factor", "quantization_config", "rms_norm_eps",
    "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "torch_dtype",
    "use_sliding_window", "vocab_size",
})  # fmt: skip
"""Keys that `hf_config` and `hf_rope` read or `check_pairs` compares."""

OF_EXPERTS = frozenset({
    "decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob", "num_experts",
    "num_experts_per_tok", "num_local_experts",
})  # fmt: skip
"""Such keys of a mixture of experts; a dense model may not have them, but with values that mean none."""

HARMLESS = frozenset({
    # names and bookkeeping
    "_commit_hash", "_name_or_path", "finetuning_task", "is_llama_config", "license", "model_name", "name_or_path",
    "task_specific_params", "tokenizer_class", "transformers.js_config", "transformers_version", "unsloth_fixed",
    "unsloth_version",
    # tokens that decoding does not use
    "decoder_start_token_id", "pad_token_id", "prefix", "sep_token_id", "unk_token_id", "cls_token_id",
    # training
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout", "embd_pdrop",
    "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "initializer_factor", "initializer_range",
    "loss_type", "output_router_logits", "resid_pdrop", "router_aux_loss_coef", "router_jitter_noise",
    # other tasks, and what a call returns
    "id2label", "keys_to_ignore_at_inference", "label2id", "num_labels", "output_attentions",
    "output_hidden_states", "problem_type", "return_dict", "tf_legacy_loss", "torchscript", "use_bfloat16",
    # how others carry out the same arithmetic
    "_attn_implementation", "_attn_implementation_autoset", "_experts_implementation", "_flash_attn_2_enabled",
    "attn_implementation", "ep_size", "experts_implementation", "max_sequence_length", "pretraining_tp",
    "use_cache", "use_flash_attention", "use_flash_attn", "use_return_dict",
    # generation: transformers 5 does not read these from config.json either
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "min_length", "min_p",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_scores",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature",
    "top_k", "top_p", "typical_p",
})  # fmt: skip
"""Keys that change nothing of what is computed, whatever their value."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_multiplier": (),
    "attention_out_bias": (False,),
    "attn_output_gate": (False,),
    "chunk_size_feed_forward": (0,),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "is_causal": (True,),
    "is_decoder": (True, False),
    "is_encoder_decoder": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "moe_layer_freq": (1,),
    "n_shared_experts": (0,),
    "num_nextn_predict_layers": (0,),
    "partial_rotary_factor": (1,),
    "pruned_heads": ({},),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "rotary_pct": (1,),
    "shared_expert_intermediate_size": (0,),
    "tie_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
}
"""Keys that change what is computed, with the values at which they do not; null is always one of them."""

OF_FAMILY: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "attention_bias": {"mistral": (False,), "qwen2": (True,)},
    "mlp_bias": {"mistral": (False,), "qwen2": (False,), "qwen3": (False,), "qwen3_moe": (False,)},
    "qkv_bias": {"llama": (False,), "mistral": (False,), "qwen2": (True,), "qwen3": (False,), "qwen3_moe": (False,)},
    "use_qk_norm": {"llama": (False,), "mistral": (False,), "qwen2": (False,), "qwen3": (True,), "qwen3_moe": (True,)},
    "qk_norm": {"llama": (False,), "mistral": (False,), "qwen2": (False,), "qwen3": (True,), "qwen3_moe": (True,)},
    "use_sliding_window": {"llama": (False,)},
}
"""Keys whose value the family fixes: another one asks for a model that the family is not."""

CLASSES: Mapping[str, tuple[str, ...]] = {
    "llama": ("LlamaForCausalLM", "LLaMAForCausalLM"),
    "mistral": ("MistralForCausalLM",),
    "qwen2": ("Qwen2ForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",),
    "qwen3_moe": ("Qwen3MoeForCausalLM",),
}
QUANTISED = ("quantization_config", "compression_config", "quantization")


def check_keys(config: Mapping[str, Any], family: str) -> None:
    """Raises ModelError for keys that would change what is computed, all of them named with their values."""
    for key in QUANTISED:
        if config.get(key) is not None:
            method = config[key]
            name = method.get("quant_method", "unknown") if isinstance(method, Mapping) else method
            raise ModelError(
                f"weights are quantised ({key}: {shown(name)}); supported: unquantised float32, bfloat16 and float16 "
                "checkpoints, so take the model's unquantised repository"
            )
    problems = [*_of_another_family(config, family), *_unknown(config, family)]
    if problems:
        raise ModelError(
            f"config.json has keys that may change what the model computes: {'; '.join(problems)}. If a key changes "
            "nothing, remove it from config.json"
        )


def _of_another_family(config: Mapping[str, Any], family: str) -> Iterator[str]:
    for key, by_family in OF_FAMILY.items():
        allowed = by_family.get(family)
        if config.get(key) is not None and allowed is not None and not _is_one_of(config[key], allowed):
            yield f"{key} {shown(config[key])} (supported for {family}: {shown(allowed[0])})"


def _unknown(config: Mapping[str, Any], family: str) -> Iterator[str]:
    for key, value in config.items():
        if key in HARMLESS or key in READ or key in OF_FAMILY or key in QUANTISED or value is None:
            continue
        if key in OF_EXPERTS and (family == "qwen3_moe" or value in (0, 1, [], False)):
            continue
        neutral = NEUTRAL.get(key)
        if neutral is None:
            yield f"{shown(key)} {shown(value)} (unknown)"
        elif not _is_one_of(value, neutral):
            yield f"{key} {shown(value)} (supported: {shown(neutral[0]) if neutral else 'null'})"


def check_pairs(config: Mapping[str, Any], family: str) -> None:
    """Raises ModelError where two keys contradict one another, with both values. Rotary ones: `hf_rope`."""
    for one, other in (("dtype", "torch_dtype"), ("num_experts", "num_local_experts")):
        a, b = config.get(one), config.get(other)
        if a is not None and b is not None and _plain(a) != _plain(b):
            raise contradiction(one, a, other, b)
    classes = config.get("architectures")
    if classes is not None and (not isinstance(classes, list) or not any(name in CLASSES[family] for name in classes)):
        raise contradiction("architectures", classes, "model_type", family)
    types, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if types is None:
        return
    if not isinstance(types, list) or not all(isinstance(each, str) for each in types):
        raise ModelError(f"layer_types is {shown(types)}; expected a list of names")
    unknown = [each for each in types if each not in ("full_attention", "sliding_attention")]
    if unknown:
        raise ModelError(f"layer_types holds {shown(unknown[0])}; supported: full_attention on every layer")
    if len(types) != layers:
        raise contradiction("layer_types", f"{len(types)} layers", "num_hidden_layers", layers)
    slides = "sliding_attention" in types
    if slides and not (family in ("qwen2", "qwen3") and config.get("use_sliding_window", False)):
        raise contradiction("layer_types", "sliding_attention", "use_sliding_window", config.get("use_sliding_window"))
    first = config.get("max_window_layers")
    if config.get("use_sliding_window") and isinstance(first, int):
        planned = ["sliding_attention" if index >= first else "full_attention" for index in range(len(types))]
        if planned != types:
            raise contradiction("layer_types", types, "max_window_layers", first)


def contradiction(one: str, a: Any, other: str, b: Any) -> ModelError:
    """The error for two keys that cannot both be meant."""
    return ModelError(
        f"config.json contradicts itself: {one} is {shown(a)} and {other} is {shown(b)}; remove the one that is wrong"
    )


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equal, and both or neither a truth value."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in allowed)


def _plain(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value
