"""Where a run comes from: code, versions, hardware, threads, command. No user name and no absolute path."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import vcbench
from vcbench.records.schema import SCHEMA_VERSION

PACKAGES = (
    "torch",
    "numba",
    "llvmlite",
    "numpy",
    "safetensors",
    "tokenizers",
    "transformers",
    "gguf",
    "vllm",
    "lmcache",
)
CPU_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "sve",
    "bf16",
)
ENVIRONMENT = (
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "NUMBA_",
    "ONEDNN_",
    "DNNL_",
    "CUBLAS_",
    "CUDA_",
    "PYTORCH_",
)


def collect(
    *,
    cells: Sequence[Mapping[str, Any]],
    model: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    argv: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of `provenance.json`.

    Args:
        cells: id, label, arm, method, compressor, draft_length, task, cache_class; in the comparison's order.
        model: What identifies the weights: id, revision, dtype, device, hashes.
        seeds: Every seed, by what it seeds.
        argv: The command line; that of this process if not given.
        extra: Further top-level keys.
    """
    return {
        "schema": SCHEMA_VERSION,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(argv),
        "git": git_state(),
        "versions": versions(),
        "hardware": hardware(),
        "os": {"system": platform.system(), "release": platform.release(), "libc": " ".join(platform.libc_ver())},
        "threads": _threads(),
        "environment": {
            key: neutral(value) for key, value in sorted(os.environ.items()) if key.startswith(ENVIRONMENT)
        },
        "model": dict(model or {}),
        "seeds": dict(seeds or {}),
        "cells": [dict(cell) for cell in cells],
        **(extra or {}),
    }


def command(argv: Sequence[str] | None = None) -> list[str]:
    """The command line without the reader's directories; that of this process if not given."""
    return [neutral(word) for word in _command(sys.argv if argv is None else argv)]


def neutral(text: str) -> str:
    """The text with absolute paths made relative to the working directory or the home, else cut to their last part."""
    head, separator, tail = text.rpartition("=")
    if separator and tail.startswith("/"):
        return f"{head}={neutral(tail)}"
    if os.pathsep in text and text.startswith("/"):
        return os.pathsep.join(neutral(part) for part in text.split(os.pathsep))
    if not text.startswith("/"):
        return text
    path = Path(text)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 -- Path.home() raises where there is none
    if home.is_absolute() and home != Path("/") and path.is_relative_to(home):
        return str(Path("~") / path.relative_to(home))
    return f".../{path.name}" if path.name else text


def git_state() -> dict[str, Any]:
    """Commit and whether the package differs from it; both None where the package is no part of a checkout."""
    package = Path(vcbench.__file__).resolve().parent
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return {"commit": None, "dirty": None}
    status = _git(package, "status", "--porcelain", "--", ".")
    return {"commit": _git(package, "rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def versions() -> dict[str, str]:
    """Versions of vcbench, Python and what computes, as installed; nothing is imported for it."""
    found = {"vcbench": vcbench.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Processor, cores, memory and accelerators."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "machine": platform.machine(),
        "cpu": info.get("model name") or platform.processor() or "unknown",
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cpus": len(affinity(0)) if affinity else psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "cpu_flags": [flag for flag in CPU_FLAGS if flag in flags],
        "gpus": _gpus(),
    }


def _command(argv: Sequence[str]) -> list[str]:
    """The command line with the program by its name alone."""
    return [Path(argv[0]).name, *argv[1:]] if argv else []


def _threads() -> dict[str, int]:
    """Threads that torch uses, where it is loaded."""
    torch = sys.modules.get("torch")
    return {"torch": torch.get_num_threads()} if torch is not None else {}


def _cpuinfo() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n", 1)[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is not None:
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    listed = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in (listed or "").splitlines() if line.strip()]


def _git(directory: Path, *arguments: str) -> str | None:
    return _output(["git", "-C", str(directory), *arguments])


def _output(command: list[str]) -> str | None:
    """What the command prints, or None if it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
