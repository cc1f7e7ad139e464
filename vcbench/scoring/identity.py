"""What scores depend on beside the records: this code, the task's code if it is a plug-in, the text packages."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vcbench import registry
from vcbench.records.reader import Run

PACKAGE = Path(__file__).resolve().parents[1]
PARTS = ("scoring", "metrics", "tasks", "records")
BESIDE = ("resolved.json",)
"""Files of a run's directory, other than the records, that a metric reads."""
PACKAGES = ("evaluate", "rouge-score", "sacrebleu", "unidiff", "swebench", "jsonschema", "referencing")


@cache
def code_sha256() -> str:
    """Hash of every module that a score can depend on, and of the versions of the packages behind them."""
    digest = hashlib.sha256()
    for part in PARTS:
        for source in sorted((PACKAGE / part).rglob("*.py")):
            content = source.read_bytes().replace(b"\r\n", b"\n")
            digest.update(f"{source.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    digest.update(repr(sorted(package_versions().items())).encode())
    return digest.hexdigest()


def package_versions() -> dict[str, str]:
    """Versions of what computes scores; `none` where it is not installed."""
    return {name: _version(name) for name in PACKAGES}


def identity_of(run: Run) -> str:
    """`code_sha256` with the sources of tasks from outside vcbench, and with what lies beside the records."""
    digest = hashlib.sha256(code_sha256().encode())
    for task in run.tasks:
        if task not in registry.names("task"):
            continue
        module = registry.lookup("task", task).__module__
        source = getattr(sys.modules.get(module), "__file__", None)
        if module.partition(".")[0] != "vcbench" and source is not None:
            digest.update(Path(source).read_bytes())
    for name in BESIDE:
        if (run.path / name).is_file():
            digest.update((run.path / name).read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
