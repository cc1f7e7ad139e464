from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vcbench.errors import ModelError
from vcbench.models.architecture import Architecture
from vcbench.models.hf_config import parse_architecture
from vcbench.models.safetensors_header import weight_files, weight_notes
from vcbench.models.weights import WeightReader, expected_shapes

NORM = "model.norm.weight"


@pytest.fixture
def architecture(llama_config: dict[str, Any]) -> Architecture:
    return parse_architecture(llama_config)


@pytest.fixture
def tensors(architecture: Architecture) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in expected_shapes(architecture).items()}


@pytest.fixture
def checkpoint(tensors: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def shard(tensors: dict[str, torch.Tensor], directory: Path) -> dict[str, str]:
    """Writes two shards and their index; returns the index's weight map."""
    names = sorted(tensors)
    halves = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, held in halves.items():
        save_file({name: tensors[name] for name in held}, directory / file)
    weight_map = {name: file for file, held in halves.items() for name in held}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_reads_every_tensor_and_they_outlive_the_reader(
    checkpoint: Path, tensors: dict[str, torch.Tensor], architecture: Architecture
) -> None:
    with WeightReader(checkpoint) as reader:
        assert reader.names() == sorted(tensors)
        reader.check_complete(architecture)
        read = {name: reader.tensor(name) for name in reader.names()}

    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_reads_shards_with_an_index_and_without(
    tmp_path: Path, tensors: dict[str, torch.Tensor], architecture: Architecture
) -> None:
    shard(tensors, tmp_path)
    save_file({"another.name": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    for _ in range(2):
        with WeightReader(tmp_path) as reader:
            reader.check_complete(architecture)
            assert torch.equal(reader.tensor(NORM), tensors[NORM])
        (tmp_path / "model.safetensors.index.json").unlink(missing_ok=True)


def test_reads_one_file(checkpoint: Path, architecture: Architecture) -> None:
    with WeightReader(checkpoint / "model.safetensors") as reader:
        reader.check_complete(architecture)


def test_absent_shard(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    shard(tensors, tmp_path)
    (tmp_path / "model-2-of-2.safetensors").unlink()

    with pytest.raises(ModelError, match=r"names 1 absent files \('model-2-of-2.safetensors'\); fetch the model again"):
        WeightReader(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": 3}}', '{"weight_map":' * 9999],
)
def test_broken_index(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)

    with pytest.raises(ModelError, match=r"index.json (is not|holds list)") as caught:
        WeightReader(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../out.safetensors", "/etc/passwd", "a/../../out.safetensors", "link.safetensors", ""]
)
def test_an_index_that_names_what_lies_outside(tmp_path: Path, tensors: dict[str, torch.Tensor], name: str) -> None:
    model = tmp_path / "model"
    (model / "a").mkdir(parents=True)
    save_file(tensors, tmp_path / "out.safetensors")
    (model / "link.safetensors").symlink_to(tmp_path / "out.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NORM: name}}))

    with pytest.raises(ModelError, match=r"weight_map names '.*', which is no file inside of"):
        WeightReader(model)


def test_the_hub_cache_links_to_its_own_blobs(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    model, blobs = tmp_path / "models--a--b" / "snapshots" / "c", tmp_path / "models--a--b" / "blobs"
    model.mkdir(parents=True)
    blobs.mkdir()
    save_file(tensors, blobs / "0123")
    (model / "part.safetensors").symlink_to("../../blobs/0123")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NORM: "part.safetensors"}}))

    assert NORM in WeightReader(model).names()


def test_a_single_file_comes_before_an_index_of_others(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    shard(tensors, tmp_path)
    assert weight_notes(tmp_path) == []
    save_file({NORM: torch.full((32,), 7.0)}, tmp_path / "model.safetensors")

    assert weight_files(tmp_path) == (tmp_path / "model.safetensors",)
    assert WeightReader(tmp_path).tensor(NORM).mean() == 7
    (said,) = weight_notes(tmp_path)
    assert said.startswith("model.safetensors stands beside model.safetensors.index.json")
    index = {"weight_map": {NORM: "model.safetensors", "b": "model-1-of-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(weight_files(tmp_path)) == 2
    assert weight_notes(tmp_path) == []


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()

    with pytest.raises(ModelError, match="supported: safetensors checkpoints"):
        WeightReader(tmp_path)


def test_name_in_two_files(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "a.safetensors")
    save_file({NORM: torch.zeros(32)}, checkpoint / "b.safetensors")

    with pytest.raises(ModelError, match=f"{NORM} is in both"):
        WeightReader(checkpoint)


def test_every_truncation_is_named(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=rf"model\.safetensors: {length:,} bytes.*fetch the model again"):
            WeightReader(checkpoint)
    file.write_bytes(whole + b"\0")
    with pytest.raises(ModelError, match="but the header says"):
        WeightReader(checkpoint)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"\xff\xfe",
        b'{"a": 3}',
        b"[]",
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
    ],
)
def test_broken_header(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))

    with pytest.raises(ModelError, match=r"model\.safetensors: the header .*fetch the model again"):
        WeightReader(tmp_path)


def test_missing_tensor_and_wrong_shape(
    checkpoint: Path, tensors: dict[str, torch.Tensor], architecture: Architecture, llama_config: dict[str, Any]
) -> None:
    with WeightReader(checkpoint) as reader:
        assert reader.tensor(NORM).shape == (32,)
        assert reader.shape(NORM) == (32,)
        with pytest.raises(ModelError, match=r"has no tensor nothing.weight; .*fetch the model again"):
            reader.tensor("nothing.weight")
        with pytest.raises(ModelError, match="has shape"):
            reader.check_complete(parse_architecture(llama_config | {"intermediate_size": 48}))
    del tensors[NORM]
    save_file(tensors, checkpoint / "model.safetensors")
    with WeightReader(checkpoint) as reader, pytest.raises(ModelError, match=r"lacks 1 of 21 tensors \(model.norm"):
        reader.check_complete(architecture)


def test_tensors_that_would_be_ignored_are_refused(
    checkpoint: Path, tensors: dict[str, torch.Tensor], architecture: Architecture
) -> None:
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    save_file(tensors | harmless, checkpoint / "model.safetensors")
    with WeightReader(checkpoint) as reader:
        reader.check_complete(architecture)
    save_file(tensors | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)}, checkpoint / "model.safetensors")
    with WeightReader(checkpoint) as reader, pytest.raises(ModelError, match="1 tensors that a llama model does not"):
        reader.check_complete(architecture)


def test_tied_head_may_be_stored(
    checkpoint: Path, tensors: dict[str, torch.Tensor], llama_config: dict[str, Any]
) -> None:
    with WeightReader(checkpoint) as reader:
        reader.check_complete(parse_architecture(llama_config | {"tie_word_embeddings": True}))


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    save_file({NORM: torch.zeros(32, dtype=torch.int8)}, tmp_path / "model.safetensors")

    with WeightReader(tmp_path) as reader, pytest.raises(ModelError, match="is I8; supported: F32, BF16, F16"):
        reader.tensor(NORM)


def hf_checkpoint(family: str, directory: Path, *, original_format: bool = True, **keys: Any) -> Any:
    """A tiny random model of transformers, saved; returns the model."""
    transformers = pytest.importorskip("transformers")
    base = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    config = transformers.AutoConfig.for_model(family, **base | keys)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory, save_original_format=original_format)
    return model


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [1], "head_dim": 8}


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": None, "head_dim": 16}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
        ("qwen3", {"head_dim": 16, "attention_bias": True}),
        ("qwen3_moe", MOE),
    ],
)
def test_agrees_with_what_transformers_saves(tmp_path: Path, family: str, keys: dict[str, Any]) -> None:
    hf_checkpoint(family, tmp_path, **keys)
    architecture = parse_architecture(json.loads((tmp_path / "config.json").read_text()))

    with WeightReader(tmp_path) as reader:
        reader.check_complete(architecture)
        assert set(reader.names()) == set(expected_shapes(architecture))


def test_experts_apart_and_fused_are_the_same(tmp_path: Path) -> None:
    model = hf_checkpoint("qwen3_moe", tmp_path / "apart", **MOE)
    model.save_pretrained(tmp_path / "fused", save_original_format=False)
    architecture = parse_architecture(json.loads((tmp_path / "fused" / "config.json").read_text()))

    with WeightReader(tmp_path / "apart") as apart, WeightReader(tmp_path / "fused") as fused:
        assert "model.layers.0.mlp.experts.gate_up_proj" in fused.names()
        assert "model.layers.0.mlp.experts.gate_up_proj" not in apart.names()
        for reader in (apart, fused):
            reader.check_complete(architecture)
        for layer, expert in ((0, 0), (2, 3)):
            pairs = zip(apart.expert(layer, expert), fused.expert(layer, expert), strict=True)
            assert all(torch.equal(left, right) for left, right in pairs)
        with pytest.raises(ModelError, match="has 4 experts; asked for number 4"):
            fused.expert(0, 4)
        with pytest.raises(ModelError, match="has no tensor"):
            apart.expert(0, 4)
