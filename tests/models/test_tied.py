"""A head of its own beside tied embeddings is used: transformers 5 is the referee."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vcbench.config.schema import ModelConfig
from vcbench.models.store import resolve_model
from vcbench.runners.plan import Identity
from vcbench.runners.setup import load

transformers = pytest.importorskip("transformers")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
IDS = list(range(5, 45))


def save(directory: Path, family: str, head: str) -> None:
    """A tiny model that calls its embeddings tied; `head`: what is saved as lm_head.weight."""
    torch.manual_seed(0)
    keys: dict[str, Any] = {"sliding_window": None} if family == "mistral" else {}
    if family == "qwen3_moe":
        keys = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = transformers.AutoConfig.for_model(
        family, vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, **keys,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    other = embedding.clone()
    other[-1, -1] += 0.5
    made = {"none": None, "same": embedding.clone(), "one value": other, "other": torch.randn_like(embedding)}[head]
    if made is not None:
        tensors["lm_head.weight"] = made
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("head", ["none", "same", "one value", "other"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_the_checkpoint_is_used(tmp_path: Path, family: str, head: str) -> None:
    directory = tmp_path / "model"
    save(directory, family, head)
    files = resolve_model(ModelConfig(id=str(directory)))

    assert files.architecture.tied_embeddings == (head in ("none", "same"))
    said = [note for note in files.notes if "tie_word_embeddings is true" in note]
    assert len(said) == (head in ("one value", "other"))
    identity = Identity(device="cpu", dtype="float32", code_sha256="", kernels={})
    decoder, _ = load(files, identity, "bitwise")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([IDS])).logits[0, -1]
    torch.testing.assert_close(decoder.prefill(IDS, chunk=64).first_logits, expected, rtol=2e-4, atol=2e-4)


def test_what_was_loaded_does_not_follow_the_file(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    save(directory, "llama", "none")
    files = resolve_model(ModelConfig(id=str(directory)))
    identity = Identity(device="cpu", dtype="float32", code_sha256="", kernels={})
    decoder, _ = load(files, identity, "bitwise")
    before = decoder.prefill(IDS, chunk=64).first_logits.clone()
    file = directory / "model.safetensors"
    with file.open("r+b") as stream:
        stream.seek(-4096, 2)
        stream.write(bytes(4096))
        stream.seek(file.stat().st_size // 2)
        stream.write(bytes(8192))

    assert torch.equal(decoder.prefill(IDS, chunk=64).first_logits, before)
