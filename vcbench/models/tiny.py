"""A tiny llama with seeded random weights, written where models live: for the gate's demonstrations, with no download.

Attention matters enough that a lossy cache drafts wrong tokens, and little enough that it drafts right ones too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vcbench.models.architecture import Architecture
from vcbench.models.cache import models_dir
from vcbench.models.hf_config import parse_architecture
from vcbench.models.install import exclusive, staging
from vcbench.models.shapes import expected_shapes

NAME = "tiny-random-llama-3"
"""Directory under the models directory; counted up whenever what is written changes."""
LAYERS = 3
"""More than the two that a full cache on disk has in memory, so that verification reads them back."""
ATTENTION = 0.05
"""How large attention's output is beside the rest."""
CONSONANTS, VOWELS = "bdfghklmnprstvwz", "aeiou"
SPECIAL = ("<end>", "<stop>")
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": len(SPECIAL) + len(CONSONANTS) * len(VOWELS),
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": [0, 1],
    "torch_dtype": "float32",
}


def tiny_model(seed: int = 0) -> Path:
    """The directory of the model with that seed, made if it is not there. Cost: milliseconds, and importing torch."""
    target = models_dir() / f"{NAME}-{seed}"
    if not (target / "config.json").is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(target):
            if not (target / "config.json").is_file():
                with staging(target) as directory:
                    write_tiny_model(directory, seed)
    return target


def write_tiny_model(directory: Path, seed: int) -> None:
    """Configuration, weights and tokenizer of the model, into an existing directory."""
    from safetensors.torch import save_file

    architecture = parse_architecture(CONFIG)
    save_file(tiny_weights(architecture, seed), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")


def tiny_weights(architecture: Architecture, seed: int) -> dict[str, Any]:
    """Tensors by name; each has a seed of its own."""
    import torch

    made = {}
    for number, (name, shape) in enumerate(expected_shapes(architecture).items()):
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + number + 1))
        scale = (ATTENTION if "o_proj" in name else 1.5) / shape[-1] ** 0.5
        made[name] = 1 + 0.1 * drawn if len(shape) == 1 else drawn * scale
    return made


def words() -> list[str]:
    """The vocabulary: the special tokens, then syllables."""
    return [*SPECIAL, *(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)]


def _tokenizer() -> dict[str, Any]:
    """A byte-level tokenizer whose every token is a syllable after a space; it is there to decode."""
    spelled = {word if word in SPECIAL else f"Ġ{word}": index for index, word in enumerate(words())}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": word, **special} for index, word in enumerate(SPECIAL)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": spelled, "merges": []},
    }
