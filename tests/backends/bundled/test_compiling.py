"""A first run on a machine says that kernels are compiled, and a later one does not."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from rich.console import Console

from vcbench.backends.bundled.compiling import NOTICE, announced

PROGRAM = """
import io, sys
from vcbench.engine.environment import prepare
prepare()
from rich.console import Console
from vcbench.backends.bundled.compiling import announced
from vcbench.engine.kernels.cpu.gumbel import gumbel_arg_max
import numpy as np
console = Console(file=sys.stdout, width=1000)
with announced(console.print):
    for _ in range(2):
        gumbel_arg_max(np.zeros(5), np.arange(5), np.arange(5, dtype=np.uint64) << np.uint64(50))
"""


def recorded() -> Console:
    return Console(record=True, width=1000, file=io.StringIO())


def test_one_line_however_many_kernels_are_compiled() -> None:
    first, second = (numba.njit(lambda x, by=by: x + by) for by in (1, 2))
    console = recorded()
    with announced(console.print):
        assert (first(1), second(1), first(2.0)) == (2, 3, 3.0)

    assert console.export_text() == NOTICE + "\n"


def test_nothing_where_nothing_is_compiled() -> None:
    compiled = numba.njit(lambda x: x - 1)
    compiled(1)
    console = recorded()
    with announced(console.print):
        compiled(2)
    numba.njit(lambda x: x - 2)(1)

    assert console.export_text() == ""


def test_a_kernel_from_the_cache_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two processes that share a fresh cache; the first compiles, threads' work and what is called by name too."""
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    said = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]

    assert said == [NOTICE + "\n", ""]
