"""Puts a directory in place all at once: whole or not at all, whatever is killed in between."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from vcbench.errors import ModelError


@contextmanager
def exclusive(target: Path, *, timeout_s: float = -1) -> Iterator[None]:
    """Only one process at a time installs `target`; the lock of a killed one is released by the system.

    Raises ModelError after `timeout_s` (negative: waits for ever).
    """
    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        with lock.acquire(timeout=timeout_s):
            yield
    except Timeout as error:
        raise ModelError(f"another process is installing {target}; wait for it to end and try again") from error


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """An empty directory beside `target`; on success it takes the target's place, else it is removed.

    Call within `exclusive`: directories that killed processes left are removed first.
    """
    prefix = f".{target.name}.part-"
    for stale in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield directory
        _flush(directory)
        _replace(directory, target)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _replace(directory: Path, target: Path) -> None:
    """Renames `directory` to `target`; what was there steps aside first and is removed after."""
    directory.chmod(0o755)
    if target.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-old-", dir=target.parent))
        target.rename(aside / target.name)
        directory.rename(target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        directory.rename(target)
    _sync(target.parent)


def _flush(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        _sync(path)


def _sync(path: Path) -> None:
    """Asks for the path's content to reach the disk; file systems that cannot say so are taken at their word."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
