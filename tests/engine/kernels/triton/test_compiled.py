"""The Triton kernels compile for an H100 and fit it, on a machine that has none: what the interpreter cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is installed on Linux alone")

import torch
import triton

from tests.engine.kernels.triton.gpu_caches import KINDS
from vcbench.engine.attention.device import on_gpu

pytestmark = pytest.mark.triton
SHARED_OF_H100 = 227 * 1024
"""Bytes that one program may have."""
SPILLED = 256
"""Bytes of a thread's stack, for registers that do not fit, that are still few beside what it reads."""
EACH_KERNEL = ["kivi-4", "qjl", "rotatekv", "kvquant", "kept"]


def compiled(kinds: Sequence[str], precision: str, head_dim: int | None = None) -> list[dict[str, int]]:
    """What the kernels of these kinds of caches take, compiled in another process, where nothing is interpreted."""
    if "nvidia" not in triton.backends.backends or not Path(triton.knobs.nvidia.ptxas.path).exists():
        pytest.skip("this Triton has no NVIDIA back end")
    root = Path(__file__).parents[4]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-m",
        "tests.engine.kernels.triton.compile_kernels",
        precision,
        str(head_dim or 0),
        *kinds,
    ]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    names = {kernel["kernel"].split()[-1] for kernel in found}
    assert names == {"_write", "_attend", "_join"}
    for kernel in found:
        assert kernel["shared"] <= SHARED_OF_H100, kernel
    return found


def test_kernels_compile_and_hardly_spill_registers() -> None:
    for kernel in compiled(EACH_KERNEL, "bfloat16"):
        assert kernel["stack"] <= SPILLED, kernel


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float32"])
def test_every_kind_compiles(precision: str) -> None:
    compiled(list(KINDS), precision)


@pytest.mark.slow
def test_heads_of_128_channels_fit() -> None:
    for kernel in compiled(EACH_KERNEL, "bfloat16", 128):
        assert kernel["stack"] <= SPILLED, kernel


def test_only_cuda_has_them() -> None:
    assert on_gpu(torch.device("cuda"))
    assert not on_gpu(torch.device("cpu"))
