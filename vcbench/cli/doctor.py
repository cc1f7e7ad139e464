"""`vcbench doctor`: what this machine offers, and what is missing."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from vcbench.cli.output import begin, notes, results, table, write_json
from vcbench.cli.runs import RUNS
from vcbench.errors import UsageError

EMBEDDED_MODEL = "smollm2-135m"
EMBEDDED_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""[out, in] of its fused query-key-value, output, gate-up and down projections."""


def doctor(
    runs: Annotated[Path, typer.Option("--dir", help="Where runs would be written.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Check this machine; exit code 64 if something that every run needs is missing."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", platform.python_version),
        ("torch", _torch),
        ("numba", _numba),
        ("threads", _threads),
        ("waiting threads", lambda: f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')}"),
        ("memory", _memory),
        ("gpu", _gpu),
        ("bit-exactness", _exactness),
        ("embedded model", _embedded_model),
        ("runs directory", lambda: _writable(runs)),
        ("cache directory", lambda: _writable(_cache())),
    ]
    rows = [(name, *_outcome(check)) for name, check in checks]
    if as_json:
        write_json([{"check": name, "ok": ok, "finding": finding} for name, ok, finding in rows])
    else:
        shown = [[name, "ok" if ok else "FAILED", finding] for name, ok, finding in rows]
        results().print(table("", ["check", "", "finding"], shown, wrap=(2,)))
    failed = [name for name, ok, _ in rows if not ok]
    if failed:
        notes().print(f"not ready: {', '.join(failed)}", markup=False)
        raise typer.Exit(UsageError.exit_code)
    begin()


def _outcome(check: Callable[[], str]) -> tuple[bool, str]:
    """Whether the check passed, and its finding or its error in one line."""
    try:
        return True, check()
    except Exception as error:  # noqa: BLE001 -- whatever is wrong with the machine is what was asked for
        return False, " ".join(f"{type(error).__name__}: {error}".split())


def _torch() -> str:
    import torch

    has_onednn = torch.backends.mkldnn.is_available()
    onednn = "oneDNN" if has_onednn else "no oneDNN"
    return f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {onednn}"


def _numba() -> str:
    import llvmlite
    import numba

    return f"{numba.__version__}, llvmlite {llvmlite.__version__}"


def _threads() -> str:
    import torch

    from vcbench.engine.environment import physical_cores

    return f"{physical_cores()} physical cores, torch would use {torch.get_num_threads()}"


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    return f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"


def _gpu() -> str:
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in found) or "none; runs use the CPU"


def _exactness() -> str:
    """Whether rows of the embedded model's layer shapes agree, tried on the spot. Cost: a fraction of a second."""
    import torch

    from vcbench.engine.environment import set_threads
    from vcbench.engine.model.linear import PROBE_ROWS, BlockedLinear, rows_agree

    threads = set_threads(0)
    generator = torch.Generator().manual_seed(0)
    for shape in EMBEDDED_SHAPES:
        layer = BlockedLinear(torch.randn(shape, generator=generator), None)
        if not rows_agree(layer, 0, torch.randn((max(PROBE_ROWS), shape[1]), generator=generator)):
            return f"float32 on {threads} threads: rows of a {shape[0]} x {shape[1]} layer DEPEND on their call"
    return f"float32 on {threads} threads: rows agree bit for bit at every row count tried"


def _embedded_model() -> str:
    """Whether it is there, every byte as it was fetched. Cost: reads half a gigabyte. Raises ModelError on damage."""
    from vcbench.models.store import find_installed, verify_installed

    path = find_installed(EMBEDDED_MODEL)
    if path is None:
        return f"not yet: vcbench model fetch {EMBEDDED_MODEL}"
    if not verify_installed(path, read_all=True):
        return f"{EMBEDDED_MODEL} is installed, unverified: vcbench model fetch {EMBEDDED_MODEL} --force keeps hashes"
    return f"{EMBEDDED_MODEL} is installed, every file as it was fetched"


def _cache() -> Path:
    from vcbench.models.cache import cache_dir

    return cache_dir()


def _writable(path: Path) -> str:
    """The path, once a file could be written below it; nothing is left behind."""
    existing = path
    while not existing.exists():
        existing = existing.parent
    with tempfile.TemporaryFile(dir=existing):
        return f"{path} is writable"
