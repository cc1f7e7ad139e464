from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from vcbench.config.schema import ModelConfig
from vcbench.errors import ModelError
from vcbench.models.cache import cache_dir, weights_sha256
from vcbench.models.store import is_here, resolve_model


@pytest.fixture
def model_dir(tmp_path: Path, llama_config: dict[str, Any]) -> Path:
    directory = tmp_path / "my-model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(llama_config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    save_file({"a": np.arange(4, dtype=np.float32)}, directory / "model.safetensors")
    return directory


def resolve(model_id: Path | str, revision: str | None = None) -> Any:
    return resolve_model(ModelConfig(id=str(model_id), revision=revision))


@pytest.mark.usefixtures("cache")
def test_local_directory(model_dir: Path) -> None:
    files = resolve(model_dir)

    assert files.path == model_dir
    assert files.revision is None
    assert files.architecture.n_layers == 2
    assert files.stop_ids == {2, 7}
    assert files.notes == ()
    assert len(files.weights_sha256) == 64


@pytest.mark.usefixtures("cache")
def test_relative_directory(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_dir.parent)

    assert resolve("my-model").path == model_dir
    assert resolve("./my-model").path == model_dir


@pytest.mark.usefixtures("cache")
def test_stop_ids_without_generation_config(model_dir: Path) -> None:
    (model_dir / "generation_config.json").unlink()

    assert resolve(model_dir).stop_ids == {2}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("model_id", "message"),
    [
        ("smollm2-135m", r"has not been fetched yet; run: vcbench model fetch smollm2-135m$"),
        ("Qwen/Qwen3-0.6B", r"is not on this machine; run: vcbench model fetch Qwen/Qwen3-0.6B$"),
        ("nothing", r"model 'nothing' is unknown; give a catalogue name \(smollm2-135m\)"),
        ("./nothing", "model directory ./nothing does not exist"),
        ("/a/b/c", "model directory /a/b/c does not exist"),
        ("bad name/with space", "is not on this machine"),
    ],
)
def test_missing_model_says_what_to_do(model_id: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(model_id)


@pytest.mark.usefixtures("cache")
def test_missing_revision_is_part_of_the_command() -> None:
    with pytest.raises(ModelError, match=r"run: vcbench model fetch a/b --revision v2$"):
        resolve("a/b", "v2")


@pytest.mark.usefixtures("cache")
def test_revision_does_not_apply(model_dir: Path) -> None:
    for model_id in (str(model_dir), "smollm2-135m"):
        with pytest.raises(ModelError, match="revision 'v2' does not apply"):
            resolve(model_id, "v2")


@pytest.mark.usefixtures("cache")
def test_hub_cache_is_read_without_network(tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--owner--name"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    model_dir.rename(repository / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    files = resolve("owner/name")

    assert files.revision == commit
    assert files.path.name == commit
    assert is_here("owner/name")
    assert not is_here("owner/other")
    assert resolve("owner/name", commit).weights_sha256 == files.weights_sha256


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "is not JSON"),
        ("config.json", "[" * 100_000, "config.json is not JSON that can be read"),
        ("generation_config.json", '{"a":' * 50_000, "generation_config.json is not JSON that can be read"),
        (
            "generation_config.json",
            '{"eos_token_id": 96}',
            "generation_config.json: eos_token_id holds 96, but the voc",
        ),
        ("adapter_config.json", "{}", "holds an adapter"),
        ("config.json", "[]", "holds list, expected an object"),
        ("config.json", '{"model_type": "bert"}', "my-model: model_type 'bert' is not supported"),
        ("config.json", None, "has no config.json"),
        ("model.safetensors", None, "holds no .safetensors weights"),
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id holds 'x'"),
    ],
)
def test_damaged_directory(model_dir: Path, name: str, content: str | None, message: str) -> None:
    if content is None:
        (model_dir / name).unlink()
    else:
        (model_dir / name).write_text(content)

    with pytest.raises(ModelError, match=message):
        resolve(model_dir)


@pytest.fixture
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files just written are remembered too."""
    monkeypatch.setattr("vcbench.models.cache.SETTLED_NS", -(10**18))


@pytest.mark.usefixtures("_settled")
def test_hash_is_remembered_and_follows_the_content(
    cache: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = model_dir / "model.safetensors"
    first = weights_sha256([file])
    with monkeypatch.context() as context:
        context.setattr("hashlib.file_digest", lambda *_: pytest.fail("read again"))
        assert weights_sha256([file]) == first

    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    stat = file.stat()
    file.write_bytes(changed)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    second = weights_sha256([file])
    assert second != first
    for note in (cache / "weight-hashes").iterdir():
        note.write_text("{")
    assert weights_sha256([file]) == second


@pytest.mark.usefixtures("cache", "_settled")
@pytest.mark.parametrize("how", ["copied over", "moved over", "linked"])
def test_other_weights_of_equal_size_and_time_have_their_own_hash(model_dir: Path, tmp_path: Path, how: str) -> None:
    file, other = model_dir / "model.safetensors", tmp_path / "other.safetensors"
    save_file({"a": np.arange(4, dtype=np.float32) + 1}, other)
    stat = file.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert other.stat().st_size == stat.st_size
    first = resolve(model_dir).weights_sha256
    if how == "copied over":
        shutil.copy2(other, file)
    elif how == "moved over":
        other.replace(file)
    else:
        file.unlink()
        file.symlink_to(other)

    assert file.stat().st_mtime_ns == stat.st_mtime_ns
    assert resolve(model_dir).weights_sha256 != first


@pytest.mark.usefixtures("cache")
def test_a_file_that_changes_after_it_was_hashed_is_noticed(model_dir: Path) -> None:
    files = resolve(model_dir)
    files.check_unchanged()
    file = model_dir / "model.safetensors"
    stat = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    with pytest.raises(ModelError, match=r"model.safetensors has changed since it was hashed"):
        files.check_unchanged()
    file.unlink()
    with pytest.raises(ModelError, match="has changed since it was hashed"):
        files.check_unchanged()


@pytest.mark.usefixtures("cache")
def test_a_file_that_changes_while_it_is_hashed_is_noticed(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, digest = model_dir / "model.safetensors", hashlib.file_digest

    def meanwhile(*arguments: Any) -> Any:
        found = digest(*arguments)
        file.write_bytes(file.read_bytes())
        return found

    monkeypatch.setattr("hashlib.file_digest", meanwhile)
    with pytest.raises(ModelError, match="has changed since it was hashed"):
        resolve(model_dir)


def test_a_file_just_written_is_not_remembered(cache: Path, model_dir: Path) -> None:
    weights_sha256([model_dir / "model.safetensors"])

    assert not list(cache.glob("weight-hashes/*"))


def test_hash_depends_on_content_and_name_not_on_order_or_place(cache: Path, tmp_path: Path) -> None:
    for directory in ("x", "y"):
        (tmp_path / directory).mkdir()
        for name in ("1", "2"):
            (tmp_path / directory / name).write_text(name)

    x = [tmp_path / "x" / name for name in ("1", "2")]
    y = [tmp_path / "y" / name for name in ("2", "1")]

    assert weights_sha256(x) == weights_sha256(y)
    assert weights_sha256(x) != weights_sha256(x[:1])


def test_hash_works_where_the_cache_cannot_be_written(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "file" / "below"))

    assert len(weights_sha256([model_dir / "model.safetensors"])) == 64


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("VCBENCH_CACHE_DIR")
    assert cache_dir().name == "vcbench"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("config", "generation", "stop_ids", "notes"),
    [
        ({"eos_token_id": 2}, {"eos_token_id": [5]}, {5}, ["config.json also names 2, which does not stop an answer"]),
        ({"eos_token_id": 2}, {"eos_token_id": [2, 7]}, {2, 7}, []),
        (
            {"eos_token_id": [2, 7]},
            {"eos_token_id": 7},
            {7},
            ["stop ids are 7, of generation_config.json; config.json also names 2"],
        ),
        ({"eos_token_id": 2}, {}, {2}, []),
        ({"eos_token_id": 2}, {"eos_token_id": None}, {2}, []),
        ({"eos_token_id": 2}, None, {2}, []),
        ({}, {"eos_token_id": 5}, {5}, []),
        ({}, {}, set(), ["the model names no stop id"]),
        ({}, None, set(), ["the model names no stop id"]),
        ({"eos_token_id": None}, None, set(), ["the model names no stop id"]),
        ({"eos_token_id": []}, {"eos_token_id": []}, set(), ["the model names no stop id"]),
    ],
)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_stop_ids(
    model_dir: Path, llama_config: dict[str, Any], family: str, config: Any, generation: Any, stop_ids: Any, notes: Any
) -> None:
    del llama_config["eos_token_id"]
    made = llama_config | {"model_type": family, "sliding_window": None} | config
    (model_dir / "config.json").write_text(json.dumps(made))
    (model_dir / "generation_config.json").unlink()
    if generation is not None:
        (model_dir / "generation_config.json").write_text(json.dumps(generation))

    files = resolve(model_dir)

    assert files.stop_ids == stop_ids
    assert len(files.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, files.notes, strict=True))
