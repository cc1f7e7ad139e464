"""What only reads records stays light: no torch, and nothing but the standard library, numpy, yaml, psutil and rich."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "module",
    [
        "vcbench.records.store",
        "vcbench.records.provenance",
        "vcbench.metrics.summary",
        "vcbench.metrics.divergence",
        "vcbench.lossless.check",
        "vcbench.lossless.html",
        "vcbench.lossless.junit",
        "vcbench.lossless.markdown",
        "vcbench.lossless.audit",
        "vcbench.lossless.baseline",
        "vcbench.lossless.faults",
        "vcbench.report.compare",
        "vcbench.report.score",
        "vcbench.scoring.document",
        "vcbench.scoring.export",
        "vcbench.report.show",
        "vcbench.report.runs",
        "vcbench.tasks.stdlib",
        "vcbench.tasks.trace",
    ],
)
def test_no_heavy_import(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{'torch', 'transformers', 'pandas', 'numba'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
