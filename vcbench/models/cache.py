"""Where fetched models and remembered hashes live."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from platformdirs import user_cache_path

from vcbench.errors import ModelError

CACHE_VARIABLE = "VCBENCH_CACHE_DIR"
SETTLED_NS = 2_000_000_000
"""A file this old is remembered by its stamp."""


def cache_dir() -> Path:
    """The user's cache directory for vcbench, or `VCBENCH_CACHE_DIR`; not created here."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override).expanduser().absolute() if override else user_cache_path("vcbench", appauthor=False)


def models_dir() -> Path:
    """Where converted catalogue models are installed, each in a directory of its name."""
    return cache_dir() / "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """What tells a file from another one, or from itself before it was written to, without reading it.

    The change time and the inode cannot be set back as the modification time can.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, file: Path) -> FileStamp:
        """The stamp of the file behind links."""
        real = file.resolve()
        stat = real.stat()
        return cls(
            path=str(real),
            size=stat.st_size,
            mtime_ns=stat.st_mtime_ns,
            ctime_ns=stat.st_ctime_ns,
            inode=stat.st_ino,
            device=stat.st_dev,
        )

    def check(self) -> None:
        """Raises ModelError if the file is not the one that was stamped."""
        try:
            same = FileStamp.of(Path(self.path)) == self
        except OSError:
            same = False
        if not same:
            raise ModelError(
                f"{self.path} has changed since it was hashed, so nobody knows which weights these are; let it be "
                "written to its end and run again"
            )


def weights_sha256(files: Sequence[Path]) -> str:
    """SHA-256 over the names and SHA-256 of all weight files.

    Cost: one read of every file, remembered by its `FileStamp` and free from then on. Raises ModelError on a file that
    changes while it is read.
    """
    with ThreadPoolExecutor(max_workers=4) as pool:
        digests = list(pool.map(file_sha256, files))
    lines = sorted(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def file_sha256(file: Path, *, remembered: bool = True) -> str:
    """SHA-256 of a file; `remembered` takes it from the last time where the file's stamp is the same."""
    stamp = FileStamp.of(file)
    key = asdict(stamp)
    name = hashlib.sha256(stamp.path.encode("utf-8", "surrogateescape")).hexdigest()
    note = cache_dir() / "weight-hashes" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        known = json.loads(note.read_text(encoding="utf-8")) if remembered else {}
        if {field: known.get(field) for field in key} == key and isinstance(known.get("sha256"), str):
            return str(known["sha256"])
    started_ns = time.time_ns()
    with Path(stamp.path).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    stamp.check()
    # A file that was just written may be written again within one tick of its clock, unseen by any stamp. An unwritable
    # cache costs time, not correctness: the hash is computed again next time.
    if started_ns - stamp.ctime_ns > SETTLED_NS:
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
