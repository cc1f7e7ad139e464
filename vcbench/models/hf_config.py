"""`config.json` of a Hugging Face checkpoint to an `Architecture`; what the decoder cannot compute is refused by name.

Defaults of absent keys are those of transformers 5 (`configuration_*.py` of each family), so that both read alike. Ids
of tokens have no default: those that transformers invents for llama and mistral are ordinary ones in many vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vcbench.errors import ModelError
from vcbench.models.architecture import FAMILIES, Architecture, Experts
from vcbench.models.config_keys import check_keys, check_pairs
from vcbench.models.config_values import flag, integer, number, shown, token_ids
from vcbench.models.hf_rope import parse_rope

_ABSENT = object()
_SILU = ("silu", "swish")
LARGEST_WIDTH, LARGEST_HEADS, LARGEST_LAYERS, LARGEST_EXPERTS = 2**22, 2**14, 2**12, 2**14
LARGEST_VOCABULARY = 2**24
MOST_EXPERTS_IN_ALL = 2**20


def parse_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a `config.json` describes.

    Raises ModelError, naming key and value, for what is unsupported, unknown, out of bounds or contradicts itself.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"model_type {shown(family)} is not supported; supported: {', '.join(FAMILIES)}")
    check_keys(config, family)
    check_pairs(config, family)
    if (activation := config.get("hidden_act", "silu")) not in _SILU:
        raise ModelError(f"hidden_act {shown(activation)} is not supported; supported: {', '.join(_SILU)}")
    n_heads = integer(config, "num_attention_heads", largest=LARGEST_HEADS)
    n_kv_heads = _kv_heads(config, family, n_heads)
    n_layers = integer(config, "num_hidden_layers", largest=LARGEST_LAYERS)
    hidden_size = integer(config, "hidden_size", largest=LARGEST_WIDTH)
    vocab_size = integer(config, "vocab_size", largest=LARGEST_VOCABULARY)
    rope, max_context = parse_rope(config)
    _refuse_sliding_window(config, family, n_layers, max_context)
    bias = flag(config, "attention_bias", False) and family in ("llama", "qwen3", "qwen3_moe")
    return Architecture(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=integer(config, "intermediate_size", largest=LARGEST_WIDTH),
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=_head_dim(config, family, hidden_size, n_heads),
        norm_eps=number(config, "rms_norm_eps", 1e-6, largest=1.0),
        max_context=max_context,
        rope=rope,
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=family == "llama" and flag(config, "mlp_bias", False),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        tied_embeddings=flag(config, "tie_word_embeddings", False),
        experts=_experts(config, n_layers) if family == "qwen3_moe" else None,
        bos_id=_bos_id(config),
        eos_ids=ids_within(config, "eos_token_id", vocab_size, "config.json"),
    )


def ids_within(config: Mapping[str, Any], key: str, vocab_size: int, file: str) -> frozenset[int]:
    """The token ids under `key`. Raises ModelError on one that the vocabulary does not have."""
    ids = token_ids(config, key)
    beyond = sorted(token for token in ids if token >= vocab_size)
    if beyond:
        raise ModelError(f"{file}: {key} holds {beyond[0]}, but the vocabulary has {vocab_size} tokens")
    return ids


def _refuse_sliding_window(config: Mapping[str, Any], family: str, n_layers: int, max_context: int) -> None:
    """Raises ModelError if some layer sees less than the whole context."""
    window = _sliding_window(config, family, n_layers)
    if window is None or window >= max_context:
        return
    raise ModelError(
        f"a sliding window of {window} tokens is active, below the context of {max_context}; supported: full "
        "attention on every layer (sliding_window null, or use_sliding_window false)"
    )


def _sliding_window(config: Mapping[str, Any], family: str, n_layers: int) -> int | None:
    used = flag(config, "use_sliding_window", family in ("mistral", "llama"))
    window = config.get("sliding_window", None if family == "llama" else 4096)
    if window is None or (family != "mistral" and not used):
        return None
    window = integer({"sliding_window": window}, "sliding_window")
    if family in ("qwen2", "qwen3"):
        layer_types = config.get("layer_types")
        if layer_types is None:
            sliding = integer(config, "max_window_layers", 28, minimum=0) < n_layers
        else:
            sliding = "sliding_attention" in layer_types
        return window if sliding else None
    return window


def _kv_heads(config: Mapping[str, Any], family: str, n_heads: int) -> int:
    value = config.get("num_key_value_heads", None if family == "llama" else _ABSENT)
    n_kv_heads = n_heads if value is None else integer(config, "num_key_value_heads", largest=LARGEST_HEADS)
    if n_heads % n_kv_heads:
        raise ModelError(f"num_attention_heads {n_heads} is not a multiple of num_key_value_heads {n_kv_heads}")
    return n_kv_heads


def _head_dim(config: Mapping[str, Any], family: str, hidden_size: int, n_heads: int) -> int:
    if config.get("head_dim") is not None:
        head_dim = integer(config, "head_dim", largest=LARGEST_HEADS)
    elif family == "qwen3" and "head_dim" not in config:
        head_dim = 128
    else:
        head_dim, rest = divmod(hidden_size, n_heads)
        if rest:
            raise ModelError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads {n_heads} and head_dim is absent"
            )
    if head_dim % 2 or not head_dim:
        raise ModelError(f"head_dim {head_dim} is odd; rotary embeddings need an even one")
    return head_dim


def _experts(config: Mapping[str, Any], n_layers: int) -> Experts | None:
    key = "num_local_experts" if config.get("num_local_experts") is not None else "num_experts"
    count = integer(config, key, 128, minimum=0, largest=LARGEST_EXPERTS)
    if count * n_layers > MOST_EXPERTS_IN_ALL:
        raise ModelError(f"{key} {count} in {n_layers} layers; supported: {MOST_EXPERTS_IN_ALL:,} experts in all")
    step = integer(config, "decoder_sparse_step", 1)
    only = config.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(type(layer) is int and 0 <= layer < n_layers for layer in only):
        raise ModelError(f"mlp_only_layers is {shown(only)}; expected a list of layers below {n_layers}")
    alone = set(only)
    dense = frozenset(layer for layer in range(n_layers) if layer in alone or count == 0 or (layer + 1) % step)
    if len(dense) == n_layers:
        return None
    per_token = integer(config, "num_experts_per_tok", 8)
    if per_token > count:
        raise ModelError(f"num_experts_per_tok {per_token} is more than {key} {count}")
    return Experts(
        count=count,
        per_token=per_token,
        intermediate_size=integer(config, "moe_intermediate_size", 768, largest=LARGEST_WIDTH),
        normalise=flag(config, "norm_topk_prob", False),
        dense_layers=dense,
    )


def _bos_id(config: Mapping[str, Any]) -> int | None:
    ids = token_ids(config, "bos_token_id")
    if len(ids) > 1:
        raise ModelError(f"bos_token_id lists {len(ids)} ids; expected one or null")
    return next(iter(ids), None)
