"""A calibration comes back as it was stored, or is refused with the reason and the command to run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from vcbench.calibration.base import Calibration, CalibrationNeed
from vcbench.calibration.store import (
    FORMAT,
    calibrate_command,
    calibration_path,
    check_writable,
    find_calibration,
    load_calibration,
    make_calibration,
    save_calibration,
)
from vcbench.errors import CalibrationError

FACTS: dict[str, Any] = {
    "method": "kvquant",
    "version": 3,
    "settings": {"outliers": 0.01},
    "model": "some-model",
    "weights_sha256": "ab" * 32,
    "data": {"source": "python-stdlib", "sha256": "cd"},
    "measured": {},
}
NEED = CalibrationNeed(version=3, settings={"outliers": 0.01})
TENSORS = {"levels": torch.linspace(-1, 1, 4), "order": torch.tensor([2, 0, 1], dtype=torch.int16)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))


def stored(need: CalibrationNeed = NEED, **changed: Any) -> Path:
    """The file that `need` is looked for in, with some facts changed."""
    facts = {**FACTS, **changed}
    path = Path(need.file) if need.file else calibration_path("kvquant", need.settings, FACTS["weights_sha256"])
    save_calibration(make_calibration(TENSORS, facts), path)
    return path


def find(need: CalibrationNeed = NEED) -> Calibration:
    return find_calibration("kvquant", need, model_id="some-model", weights_sha256=FACTS["weights_sha256"])


def test_it_comes_back_as_it_was_stored() -> None:
    stored()
    found = find()

    assert found == make_calibration(TENSORS, FACTS)
    assert dict(found.facts) == {"format": FORMAT, **FACTS}
    for name, tensor in TENSORS.items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype


def test_the_hash_covers_tensors_and_facts() -> None:
    base = make_calibration(TENSORS, FACTS).sha256
    other = {**TENSORS, "levels": TENSORS["levels"].nextafter(torch.tensor(9.0))}

    assert make_calibration(dict(reversed(TENSORS.items())), FACTS).sha256 == base
    assert make_calibration(other, FACTS).sha256 != base
    assert make_calibration({**TENSORS, "order": TENSORS["order"].int()}, FACTS).sha256 != base
    assert make_calibration(TENSORS, {**FACTS, "data": {"source": "other"}}).sha256 != base


def test_missing() -> None:
    with pytest.raises(CalibrationError) as refused:
        find()
    assert str(refused.value) == (
        "kvquant is not calibrated for some-model yet; run: vcbench calibrate some-model kvquant --set=outliers=0.01"
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"version": 2}, "is stale: fit version 2, this vcbench's is 3"),
        ({"weights_sha256": "ef" * 32}, "was fitted on other weights"),
        ({"settings": {"outliers": 0.02}}, "was fitted with {'outliers': 0.02}"),
        ({"method": "kvzap"}, "calibrates kvzap, not kvquant"),
    ],
)
def test_what_does_not_belong_is_refused(changed: dict[str, Any], reason: str) -> None:
    stored(**changed)
    with pytest.raises(CalibrationError, match="; run: vcbench calibrate some-model kvquant") as refused:
        find()
    assert reason in str(refused.value)


def test_a_file_of_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcbench.calibration.store.FORMAT", FORMAT + 1)
    path = stored()
    monkeypatch.undo()
    with pytest.raises(CalibrationError, match=f"format {FORMAT + 1}; this vcbench reads {FORMAT}"):
        load_calibration(path)


def test_a_changed_number_is_refused() -> None:
    path = stored()
    metadata = _metadata(path)
    tensors = load_file(path)
    tensors["levels"][1] += 0.5
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(CalibrationError, match="has been changed since it was written"):
        find()


def test_a_changed_fact_is_refused() -> None:
    path = stored(weights_sha256="ef" * 32)
    metadata = {key: text.replace("ef" * 32, FACTS["weights_sha256"]) for key, text in _metadata(path).items()}
    save_file(load_file(path), path, metadata=metadata)
    with pytest.raises(CalibrationError, match="has been changed since it was written"):
        find()


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
@hypothesis_settings(max_examples=80)
def test_any_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, position: int, bit: int) -> None:
    path = tmp_path_factory.mktemp("flip") / "one.safetensors"
    save_calibration(make_calibration(TENSORS, FACTS), path)
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)
    try:
        found = load_calibration(path)
    except CalibrationError:
        return
    # The only bits that may change unnoticed are those that mean the same, such as a blank of the header.
    assert found == make_calibration(TENSORS, FACTS)


@pytest.mark.parametrize("content", [b"", b"no tensors", b"\xff" * 4096])
def test_rubbish_is_refused(content: bytes) -> None:
    path = stored()
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match="cannot be read as a calibration"):
        find()


def test_tensors_from_elsewhere_are_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "other.safetensors")
    with pytest.raises(CalibrationError, match="was not written by `vcbench calibrate`"):
        load_calibration(tmp_path / "other.safetensors")


def test_a_named_file_is_taken_and_named_in_the_command(tmp_path: Path) -> None:
    need = replace(NEED, file=str(tmp_path / "mine.safetensors"))
    with pytest.raises(CalibrationError, match=r"there is no calibration at .*mine\.safetensors"):
        find(need)
    stored(need)

    assert find(need).facts["model"] == "some-model"
    assert calibrate_command("kvquant", need, "m").endswith(f"--output {need.file}")
    assert calibrate_command("kvquant", need, "./my model").startswith("vcbench calibrate './my model' kvquant")


def test_settings_and_weights_have_files_of_their_own() -> None:
    paths = {
        calibration_path(method, settings, weights)
        for method in ("kvquant", "kvzap")
        for settings in ({"outliers": 0.01}, {"outliers": 0.02})
        for weights in ("1" * 64, "2" * 64)
    }
    assert len(paths) == 8


def test_writing_replaces_the_file_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored()
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CalibrationError, match=r"cannot write .*: No space left .*or give another file with --output"):
        save_calibration(make_calibration({}, FACTS), path)

    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_file_can_be_read_by_others() -> None:
    assert stored().stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(("name", "reason"), [("", "Is a directory"), ("file/one.safetensors", "File exists")])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CalibrationError, match=f"cannot write .*: {reason}; .*--output"):
        check_writable(tmp_path / name)
    check_writable(tmp_path / "new" / "one.safetensors")
    assert not list((tmp_path / "new").iterdir())


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as stream:
        return dict(stream.metadata())
