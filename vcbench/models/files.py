"""Small text files of a model directory, read within bounds: what a stranger put there must not hang or fill memory."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vcbench.errors import ModelError

LARGEST_BYTES = 64 * 2**20
"""Of a configuration or template; published ones are below 1 MB, weight indexes below 20 MB."""


def read_bytes(path: Path, *, largest: int = LARGEST_BYTES) -> bytes:
    """The bytes of a regular file. Raises ModelError if it is absent, unreadable, too large or something else."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is not a regular file; fetch the model again")
        if status.st_size > largest:
            raise ModelError(f"{path} has {status.st_size:,} bytes; supported: at most {largest:,}")
        return path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}; expected a Hugging Face model directory") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path, *, largest: int = LARGEST_BYTES) -> str:
    """The text of a regular file, line ends as \\n. Raises ModelError as `read_bytes`, or if it is not UTF-8."""
    try:
        text = read_bytes(path, largest=largest).decode("utf-8")
    except ValueError as error:
        raise ModelError(f"{path} is not UTF-8 text ({error}); fetch the model again") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, *, largest: int = LARGEST_BYTES) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError if it is absent, unreadable, too deep or something else."""
    text = read_text(path, largest=largest)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON that can be read ({error}); fetch the model again") from error
    if not isinstance(value, Mapping):
        raise ModelError(f"{path} holds {type(value).__name__}, expected an object; fetch the model again")
    return dict(value)


def optional_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one where there is no such file. Raises ModelError as `read_json`."""
    return read_json(path) if path.exists() or path.is_symlink() else {}
