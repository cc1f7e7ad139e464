"""Which of vcbench's own sources a run's records depend on, as a hash: what only shows or judges them is not in it."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

from vcbench import registry

PACKAGE = Path(__file__).resolve().parents[1]
ANSWERS = ("backends", "calibration", "compressors", "config", "engine", "models", "records", "runners", "tasks")
"""Packages that can change what is answered, measured or written down, and the modules beside them. None of them may
import one of the others; a test walks the imports."""
SHOWS = ("cli", "forensics", "lossless", "metrics", "report", "scoring")
"""Packages that only read records. A change there leaves every run as it was, to be shown and judged anew."""
FAULTS = ("forensics",)
"""What a run with a fault built in depends on besides."""


@cache
def code_sha256(package: Path = PACKAGE, besides: tuple[str, ...] = ()) -> str:
    """Hash of the package's sources but for `SHOWS`: names and contents, line ends as in the repository.

    besides: packages of `SHOWS` that count as well.
    """
    left_out, digest = set(SHOWS) - set(besides), hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        name = source.relative_to(package)
        if name.parts[0] not in left_out:
            content = source.read_bytes().replace(b"\r\n", b"\n")
            digest.update(f"{name.as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@cache
def plugin_sha256(kind: str, name: str) -> str | None:
    """Hash of the module that defines a compressor or task from outside vcbench; `code_sha256` covers the others."""
    cls = registry.lookup(kind, name)
    source = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if cls.__module__.partition(".")[0] == "vcbench" or source is None:
        return None
    return hashlib.sha256(Path(source).read_bytes()).hexdigest()
