"""A Llama GGUF to a Hugging Face model directory: float32 safetensors, configuration, tokenizer and chat template.

Only what the embedded model needs: architecture `llama`, tokenizer model `gpt2` with the `smollm` pre-tokenizer.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFReader, TokenType
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from vcbench.errors import ModelError
from vcbench.models.progress import Progress

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_gguf(source: Path, target: Path, *, progress: Progress) -> None:
    """Writes the model in `source` into the existing directory `target`.

    Raises ModelError if the file is damaged or is not of the supported kind, OSError if it cannot be written.
    """
    reader = _open(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise ModelError(f"{source} holds a {fields.get('general.architecture')!r} model; supported: llama")
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", {key: config[key] for key in _TOKEN_KEYS})
    _write_tokenizer(fields, target)
    tensors: dict[str, NDArray[np.float32]] = {}
    for index, tensor in enumerate(reader.tensors):
        progress("converting tensors", index, len(reader.tensors))
        tensors[tensor_name(tensor.name)] = _dequantised(tensor, config)
    progress("writing weights", 0, 0)
    _write_weights(target / "model.safetensors", tensors)


def tensor_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor. Raises ModelError if there is none."""
    stem, _, suffix = name.rpartition(".")
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    prefix, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or part not in _LAYER_NAMES:
        raise ModelError(f"GGUF tensor {name!r} has no place in a llama model")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"


def undo_rope_permutation(weight: NDArray[np.float32], n_heads: int) -> NDArray[np.float32]:
    """Query or key rows in the order of Hugging Face, which rotates halves where llama.cpp rotates pairs.

    Shapes: weight: [n_heads * D, in]; within a head, row 2 i + h goes to h * D/2 + i.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(n_heads, rows // n_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")


def _open(source: Path) -> GGUFReader:
    try:
        return GGUFReader(source)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ModelError(f"{source} is not a readable GGUF file ({error}); fetch the model again") from error


def _dequantised(tensor: Any, config: Mapping[str, Any]) -> NDArray[np.float32]:
    """The tensor as [out, in] float32, query and key rows in Hugging Face order."""
    values: NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    # GGUF lists the fastest axis first.
    values = values.reshape([int(size) for size in reversed(tensor.shape)])
    if tensor.name.endswith("attn_q.weight"):
        return undo_rope_permutation(values, config["num_attention_heads"])
    if tensor.name.endswith("attn_k.weight"):
        return undo_rope_permutation(values, config["num_key_value_heads"])
    return np.ascontiguousarray(values)


def _config(fields: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = int(_required(fields, "llama.attention.head_count"))
    hidden = int(_required(fields, "llama.embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(_required(fields, "tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": int(_required(fields, "llama.feed_forward_length")),
        "num_hidden_layers": int(_required(fields, "llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv", heads)),
        "head_dim": int(fields.get("llama.attention.key_length", hidden // heads)),
        "hidden_act": "silu",
        "max_position_embeddings": int(_required(fields, "llama.context_length")),
        # GGUF stores a float32; its shortest decimal form is the number that was meant (1e-05).
        "rms_norm_eps": float(str(np.float32(_required(fields, "llama.attention.layer_norm_rms_epsilon")))),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _write_tokenizer(fields: Mapping[str, Any], target: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    kind = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ModelError(f"GGUF tokenizer {kind} is not supported; supported: ('gpt2', 'smollm')")
    tokens = [str(token) for token in _required(fields, "tokenizer.ggml.tokens")]
    special = _special_tokens(tokens, _required(fields, "tokenizer.ggml.token_type"))
    build_tokenizer(tokens, _required(fields, "tokenizer.ggml.merges"), special).save(str(target / "tokenizer.json"))
    named = {
        "bos_token": "tokenizer.ggml.bos_token_id",
        "eos_token": "tokenizer.ggml.eos_token_id",
        "unk_token": "tokenizer.ggml.unknown_token_id",
        "pad_token": "tokenizer.ggml.padding_token_id",
    }
    config: dict[str, Any] = {name: tokens[fields[key]] for name, key in named.items() if key in fields}
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
        "model_max_length": int(_required(fields, "llama.context_length")),
    }
    template = fields.get("tokenizer.chat_template")
    if template:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
        config["chat_template"] = template
    _write_json(target / "tokenizer_config.json", config)


def build_tokenizer(tokens: Sequence[str], merges: Sequence[str], special: Sequence[str]) -> Any:
    """A `tokenizers.Tokenizer`: byte-level BPE that takes digits one by one, as SmolLM2 was trained."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(tokens)}
    left_right = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=left_right, fuse_unk=False, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer


def _special_tokens(tokens: Sequence[str], kinds: Sequence[int]) -> list[str]:
    control = {int(TokenType.CONTROL), int(TokenType.USER_DEFINED)}
    return [token for token, kind in zip(tokens, kinds, strict=True) if int(kind) in control]


def _required(fields: Mapping[str, Any], key: str) -> Any:
    try:
        return fields[key]
    except KeyError:
        raise ModelError(f"the GGUF file lacks {key}; fetch the model again") from None


def _write_weights(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # The Rust writer hides the system's error number in its text.
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number.group(1)) if number else errno.EIO, str(error), str(path)) from error
    path.chmod(0o644)  # safetensors makes files private to their owner


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
