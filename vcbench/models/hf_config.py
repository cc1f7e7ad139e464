"""`config.json` of a Hugging Face checkpoint to an `Architecture`; what the decoder cannot compute is refused by name.

Defaults of absent keys are those of transformers 5 (`configuration_*.py` of each family), so that both read alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from vcbench.errors import ModelError
from vcbench.models.architecture import FAMILIES, Architecture, Experts, Rope, RopeKind

ROPE_KINDS: tuple[str, ...] = get_args(RopeKind)
_ABSENT = object()
_SILU = ("silu", "swish")


def parse_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a `config.json` describes. Raises ModelError, naming the key, for what is unsupported."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    _refuse_unsupported(config)
    n_heads = _integer(config, "num_attention_heads")
    n_kv_heads = _kv_heads(config, family, n_heads)
    n_layers = _integer(config, "num_hidden_layers")
    hidden_size = _integer(config, "hidden_size")
    rope, max_context = _rope(config)
    _refuse_sliding_window(config, family, n_layers, max_context)
    bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3", "qwen3_moe")
    return Architecture(
        family=family,
        vocab_size=_integer(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_integer(config, "intermediate_size"),
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=_head_dim(config, family, hidden_size, n_heads),
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        max_context=max_context,
        rope=rope,
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        experts=_experts(config, n_layers) if family == "qwen3_moe" else None,
        bos_id=_bos_id(config, family),
        eos_ids=token_ids(config, "eos_token_id", default=2 if family in ("llama", "mistral") else None),
    )


def token_ids(config: Mapping[str, Any], key: str, default: int | None = None) -> frozenset[int]:
    """The ids under `key`: one, several or none. Raises ModelError if they are not non-negative integers."""
    value = config.get(key, default)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise ModelError(f"{key} holds {token!r}; expected a token id, a list of them or null")
    return frozenset(ids)


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("quantization_config") is not None:
        method = config["quantization_config"]
        name = method.get("quant_method", "unknown") if isinstance(method, Mapping) else method
        raise ModelError(
            f"weights are quantised (quantization_config: {name}); supported: unquantised float32, bfloat16 and "
            "float16 checkpoints, so take the model's unquantised repository"
        )
    activation = config.get("hidden_act", "silu")
    if activation not in _SILU:
        raise ModelError(f"hidden_act {activation!r} is not supported; supported: {', '.join(_SILU)}")


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
    if family == "llama":
        return None
    window = config.get("sliding_window", 4096)
    if window is None or (family != "mistral" and not config.get("use_sliding_window", False)):
        return None
    if not isinstance(window, int) or window < 1:
        raise ModelError(f"sliding_window is {window!r}; expected a positive integer or null")
    if family in ("qwen2", "qwen3"):
        layer_types = config.get("layer_types")
        if layer_types is None:
            sliding = config.get("max_window_layers", 28) < n_layers
        else:
            sliding = "sliding_attention" in layer_types
        return window if sliding else None
    return window


def _kv_heads(config: Mapping[str, Any], family: str, n_heads: int) -> int:
    value = config.get("num_key_value_heads", None if family == "llama" else _ABSENT)
    n_kv_heads = n_heads if value is None else _integer(config, "num_key_value_heads")
    if n_heads % n_kv_heads:
        raise ModelError(f"num_attention_heads {n_heads} is not a multiple of num_key_value_heads {n_kv_heads}")
    return n_kv_heads


def _head_dim(config: Mapping[str, Any], family: str, hidden_size: int, n_heads: int) -> int:
    if config.get("head_dim") is not None:
        head_dim = _integer(config, "head_dim")
    elif family == "qwen3" and "head_dim" not in config:
        head_dim = 128
    else:
        head_dim, rest = divmod(hidden_size, n_heads)
        if rest:
            raise ModelError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads {n_heads} and head_dim is absent"
            )
    if head_dim % 2:
        raise ModelError(f"head_dim {head_dim} is odd; rotary embeddings need an even one")
    return head_dim


def _experts(config: Mapping[str, Any], n_layers: int) -> Experts | None:
    key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    count = _integer(config, key, 128, minimum=0)
    step = _integer(config, "decoder_sparse_step", 1)
    only = config.get("mlp_only_layers") or []
    dense = frozenset(layer for layer in range(n_layers) if layer in only or count == 0 or (layer + 1) % step)
    if len(dense) == n_layers:
        return None
    per_token = _integer(config, "num_experts_per_tok", 8)
    if per_token > count:
        raise ModelError(f"num_experts_per_tok {per_token} is more than {key} {count}")
    return Experts(
        count=count,
        per_token=per_token,
        intermediate_size=_integer(config, "moe_intermediate_size", 768),
        normalise=bool(config.get("norm_topk_prob", False)),
        dense_layers=dense,
    )


def _bos_id(config: Mapping[str, Any], family: str) -> int | None:
    ids = token_ids(config, "bos_token_id", default=1 if family in ("llama", "mistral") else None)
    if len(ids) > 1:
        raise ModelError(f"bos_token_id lists {len(ids)} ids; expected one or null")
    return next(iter(ids), None)


def _rope(config: Mapping[str, Any]) -> tuple[Rope, int]:
    """The rotary embedding and the context that it supports, in tokens."""
    trained = _integer(config, "max_position_embeddings")
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(table, Mapping):
        raise ModelError(f"rope_parameters is {table!r}; expected a mapping")
    if any(isinstance(value, Mapping) for value in table.values()):
        raise ModelError("rope_parameters differ by layer type; supported: one set for every layer")
    kind = table.get("rope_type", table.get("type")) or "default"
    if kind not in ROPE_KINDS:
        raise ModelError(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    partial = table.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ModelError(f"partial_rotary_factor {partial} is not supported; supported: 1 (the whole head rotates)")
    theta = _number(table, "rope_theta", None) if "rope_theta" in table else _number(config, "rope_theta", 10000.0)
    if kind == "default":
        return Rope(theta=theta), trained
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=_number(table, "factor", None)), trained
    original = _original_context(config, table, trained)
    if kind == "llama3":
        return _llama3(table, theta, original), trained
    rope = _yarn(table, theta, original, trained)
    # A YaRN table extends a checkpoint whose max_position_embeddings may still be the trained length (Qwen's advice).
    return rope, max(trained, int(rope.factor * original))


def _original_context(config: Mapping[str, Any], table: Mapping[str, Any], trained: int) -> int:
    source = config if config.get("original_max_position_embeddings") is not None else table
    return _integer(source, "original_max_position_embeddings", trained)


def _llama3(table: Mapping[str, Any], theta: float, original: int) -> Rope:
    return Rope(
        theta=theta,
        kind="llama3",
        factor=_number(table, "factor", None),
        low_freq_factor=_number(table, "low_freq_factor", None),
        high_freq_factor=_number(table, "high_freq_factor", None),
        original_max_position=original,
    )


def _yarn(table: Mapping[str, Any], theta: float, original: int, trained: int) -> Rope:
    return Rope(
        theta=theta,
        kind="yarn",
        factor=_number(table, "factor", trained / original),
        original_max_position=original,
        beta_fast=_number(table, "beta_fast", 32.0),
        beta_slow=_number(table, "beta_slow", 1.0),
        attention_factor=_optional_number(table, "attention_factor"),
        mscale=_optional_number(table, "mscale"),
        mscale_all_dim=_optional_number(table, "mscale_all_dim"),
        truncate=bool(table.get("truncate", True)),
    )


def _integer(config: Mapping[str, Any], key: str, default: int | None = None, *, minimum: int = 1) -> int:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"config.json lacks {key}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ModelError(f"{key} is {value!r}; expected an integer of at least {minimum}")
    return value


def _number(config: Mapping[str, Any], key: str, default: float | None) -> float:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"the rope parameters lack {key}")
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ModelError(f"{key} is {value!r}; expected a positive number")
    return float(value)


def _optional_number(config: Mapping[str, Any], key: str) -> float | None:
    return None if config.get(key) is None else _number(config, key, None)
