"""What a run's directory needs of the file system: names, a lock, whole-file replacement, failures in plain words."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vcbench.errors import RecordError
from vcbench.records.codec import plain

CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
REQUESTS = "requests.jsonl"
DAMAGED = "damaged.jsonl"
MANIFEST = "manifest.json"
LOCK = ".lock"

ELSEWHERE = "choose another `output_dir`, a writable one, or another name"
CANNOT_CREATE = "no directory can be made there; {elsewhere}"
ADVICE = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would exceed the allowed size; raise the limit",
    errno.EROFS: "the file system is read-only; {elsewhere}",
    errno.EACCES: "permission denied; {elsewhere}",
    errno.EPERM: "permission denied; {elsewhere}",
    errno.ENOTDIR: "a part of the path is a file; {elsewhere}",
    errno.EEXIST: "a file of that name is in the way; {elsewhere}",
    errno.ENOENT: "there is no such run",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


@contextmanager
def explained(path: Path, action: str, elsewhere: str = ELSEWHERE) -> Iterator[None]:
    """Turns a failure of the file system into a RecordError that says what to do, perhaps to take a place elsewhere."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        advice = CANNOT_CREATE if (action, number) == ("create", errno.ENOENT) else ADVICE.get(number, str(error))
        advice = advice.replace("{elsewhere}", elsewhere)
        kept = " (all earlier records are kept; the same command goes on from there)" if action == "write to" else ""
        raise RecordError(f"cannot {action} {path}: {advice}{kept}") from error


def take_lock(path: Path) -> int:
    """A descriptor that holds the directory's lock until it is closed. Raises RecordError naming the holder."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise RecordError(
            f"{path} is being written by another vcbench (process {holder}); wait for it or choose another name"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """One write; more only where the system took a part of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def replace_file(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """The file with this content, or as it was before: temporary file, then rename. mode: permissions that it keeps."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    temporary.unlink(missing_ok=True)
    # O_EXCL: never through a link that somebody else has put there.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            if mode is not None:
                os.fchmod(descriptor, mode & 0o7777)
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes names in the directory last through a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """An indented JSON object in ASCII. Raises RecordError on a value without a JSON form."""
    try:
        return json.dumps(plain(value), indent=2, allow_nan=False).encode("ascii") + b"\n"
    except TypeError as error:
        raise RecordError(str(error)) from error


def read_regular(path: Path, *, largest: int | None = None) -> bytes:
    """The content of a regular file, or of one that a link leads to; never waits for a device or a pipe.

    Raises OSError, and RecordError where it is another kind of file or larger than `largest` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise RecordError(f"{path} is no regular file; the run is damaged")
        if largest is not None and state.st_size > largest:
            raise RecordError(f"{path} has {state.st_size:,} bytes, more than the {largest:,} that it may have")
        return file.read()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises RecordError."""
    try:
        value = json.loads(read_regular(path))
    except FileNotFoundError:
        raise RecordError(f"{path} is missing; the run was never begun or is damaged") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path} must hold a JSON object, found {type(value).__name__}")
    return value
