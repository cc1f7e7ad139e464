"""What is asked for is written where it was asked for, and nothing that is no regular file is ever replaced."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vcbench.errors import UsageError
from vcbench.records import files, output
from vcbench.records.output import write_output

ROOT = Path(__file__).parents[2]


def test_a_regular_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report"
    write_output(path, b"new")
    assert path.read_bytes() == b"new"
    path.chmod(0o640)
    write_output(path, b"newer")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"newer", 0o640)

    def full(descriptor: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(UsageError, match="report cannot be written: No space left"):
        write_output(path, b"lost")
    assert path.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real").write_bytes(b"old")
    for name, target in [("one", "there/real"), ("two", "one"), ("dangling", "there/new")]:
        (tmp_path / name).symlink_to(target)
    for name, real in [("two", "real"), ("dangling", "new")]:
        write_output(tmp_path / name, name.encode())
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / real).read_bytes() == name.encode()
        assert not (tmp_path / "there" / real).is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="loop cannot be written"):
        write_output(tmp_path / "loop", b"x")
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize("how", ["node", "link"])
def test_a_device_is_written_to(tmp_path: Path, how: str) -> None:
    path = Path("/dev/null")
    if how == "link":
        path = tmp_path / "null"
        path.symlink_to("/dev/null")
    before = Path("/dev/null").stat()
    write_output(path, b"gone")
    after = Path("/dev/null").stat()
    assert stat.S_ISCHR(after.st_mode)
    assert (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)
    with pytest.raises(UsageError, match="/dev/full cannot be written: No space left"):
        write_output(Path("/dev/full"), b"x")


def test_a_pipe_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    data = bytes(range(256)) * 4096
    write_output(path, data)
    reader.join()
    assert got == [data]
    assert stat.S_ISFIFO(path.stat().st_mode)
    monkeypatch.setattr(output, "READER_WAIT_S", 0.1)
    with pytest.raises(UsageError, match="pipe cannot be written: nothing reads from this pipe"):
        write_output(path, b"x")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_is_open_already_is_written_to_as_it_is(tmp_path: Path, name: str) -> None:
    """A file behind the shell's redirection must not be replaced under it."""
    program = (
        "from pathlib import Path; from vcbench.records.output import write_output; print('before'); "
        f"write_output(Path({name!r}), b'report\\n'); print('after')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nreport\nafter\n"


def test_unusable_places_are_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path, tmp_path / "none" / "x", tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match="cannot be written"):
            write_output(path, b"x")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """The temporary file's name can be guessed; what somebody put there is taken away, not written through."""
    (tmp_path / "victim").write_text("safe")
    (tmp_path / f"report.{os.getpid()}.partial").symlink_to("victim")
    write_output(tmp_path / "report", b"x")
    assert (tmp_path / "victim").read_text() == "safe"


def test_a_file_is_on_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content first, then the name, then the directory: a power cut leaves the old file or the new one."""
    done: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        done.append("name")
        return real_replace(self, target)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    write_output(tmp_path / "report", b"x")
    assert done == ["content", "name", "directory"]
