from __future__ import annotations

import threading
from pathlib import Path

import pytest

from vcbench.errors import ModelError
from vcbench.models.install import exclusive, staging


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_staging_takes_the_targets_place(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for text in ("first", "second"):
        with staging(target) as directory:
            (directory / "file").write_text(text)
            assert not (directory / "stale").exists()
            (directory / "stale").mkdir()
        assert (target / "file").read_text() == text
        assert names(tmp_path) == ["model"]


def test_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "file").write_text("old")

    with pytest.raises(RuntimeError), staging(target) as directory:  # noqa: PT012 - the write is what fails half-way
        (directory / "file").write_text("new")
        raise RuntimeError

    assert (target / "file").read_text() == "old"
    assert names(tmp_path) == ["model"]


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".model.part-abc").mkdir()
    (tmp_path / ".model.part-old-abc" / "model").mkdir(parents=True)
    (tmp_path / ".another.part-abc").mkdir()

    with staging(tmp_path / "model"):
        pass

    assert names(tmp_path) == [".another.part-abc", "model"]


def test_only_one_at_a_time(tmp_path: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with exclusive(tmp_path / "model"):
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    with (
        pytest.raises(ModelError, match="another process is installing"),
        exclusive(tmp_path / "model", timeout_s=0.05),
    ):
        pass
    release.set()
    holder.join()
    with exclusive(tmp_path / "model", timeout_s=5), exclusive(tmp_path / "other", timeout_s=0):
        pass
