"""Where fetched models and remembered hashes live."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from platformdirs import user_cache_path

CACHE_VARIABLE = "VCBENCH_CACHE_DIR"


def cache_dir() -> Path:
    """The user's cache directory for vcbench, or `VCBENCH_CACHE_DIR`; not created here."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override).expanduser().absolute() if override else user_cache_path("vcbench", appauthor=False)


def models_dir() -> Path:
    """Where converted catalogue models are installed, each in a directory of its name."""
    return cache_dir() / "models"


def weights_sha256(files: Sequence[Path]) -> str:
    """SHA-256 over the names and SHA-256 of all weight files.

    Cost: one read of every file, remembered by (path, size, modification time) and free from then on.
    """
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = list(pool.map(_remembered_sha256, files))
    lines = sorted(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _remembered_sha256(file: Path) -> str:
    real = file.resolve()
    stat = real.stat()
    key = {"path": str(real), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    name = hashlib.sha256(str(real).encode()).hexdigest()
    note = cache_dir() / "weight-hashes" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if {field: known.get(field) for field in key} == key and isinstance(known.get("sha256"), str):
            return str(known["sha256"])
    with real.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    # An unwritable cache costs time, not correctness: the hash is computed again next time.
    with contextlib.suppress(OSError):
        _write_atomically(note, json.dumps({**key, "sha256": digest}))
    return digest


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
