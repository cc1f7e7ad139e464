"""Writes what a user asked for to where they asked: one way for reports, tables and exports."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from pathlib import Path

from vcbench.errors import UsageError
from vcbench.records.files import replace_file, write_all

READER_WAIT_S = 10.0
"""How long a named pipe is given to find its reader."""
_OPEN_ALREADY = re.compile(r"/dev/(stdin|stdout|stderr|fd/(\d+))|/proc/(?:self|thread-self)/fd/(\d+)")
_STANDARD = {"stdin": 0, "stdout": 1, "stderr": 2}


def write_output(path: Path, data: bytes) -> None:
    """Puts the data where `path` leads, through links: whole or not at all into a regular file, which may be new.

    Anything else that stands there is written to, and stays what it is: a device, a pipe, a descriptor that is open
    already (`/dev/stdout`). Raises UsageError where the place cannot be written.
    """
    try:
        if (descriptor := _open_already(path)) is not None:
            sys.stdout.flush()
            write_all(descriptor, data)
            return
        target = Path(os.path.realpath(path))
        mode = _mode(target)
        if mode is None or stat.S_ISREG(mode):
            replace_file(target, data, mode=mode)
        else:
            _write_to(target, mode, data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _open_already(path: Path) -> int | None:
    found = _OPEN_ALREADY.fullmatch(os.path.abspath(path))  # noqa: PTH100 -- links must not be followed here
    if found is None:
        return None
    name, *numbers = found.groups()
    return _STANDARD[name] if name in _STANDARD else int(next(number for number in numbers if number))


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _write_to(path: Path, mode: int, data: bytes) -> None:
    """Writes to what is no regular file, without creating or cutting anything."""
    descriptor = _open_pipe(path) if stat.S_ISFIFO(mode) else os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _open_pipe(path: Path) -> int:
    """A named pipe open for writing. Raises OSError where nobody comes to read it."""
    deadline = time.monotonic() + READER_WAIT_S
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                reason = "nothing reads from this pipe" if error.errno == errno.ENXIO else os.strerror(error.errno or 0)
                raise OSError(error.errno, reason, str(path)) from error
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor
