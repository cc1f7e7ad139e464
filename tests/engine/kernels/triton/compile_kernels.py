"""Compiles the Triton kernels for an H100, which need not be there, and writes down what they take of it.

For each kind of cache the kernels are called as they would be on a GPU, but each launch ends once it is compiled. One
line of JSON for each kernel goes to stdout. Run as a module: `compile_triton PRECISION HEAD_SIZE KIND...`, with 0 for
each kind's own head size, where Triton does not interpret.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tests.engine.kernels.triton.gpu_caches import KINDS, as_on_gpu, prompt, queries, shape
from vcbench.engine.attention.forward import BatchAttention

TOKENS = 300


class Absent:
    """The driver of a device that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(precision: str, size: int, kinds: list[str]) -> None:
    """Compiles what the given kinds of caches launch, at their own head size or another one."""
    dtype = getattr(torch, precision)
    driver.set_active(Absent())
    patch, launched, seen = pytest.MonkeyPatch(), JITFunction.run, set()
    as_on_gpu(patch)
    label = ""

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launched(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            print(json.dumps({"kernel": f"{label} {kernel.name}", **resources(kernel)}), flush=True)
        return kernel

    patch.setattr(JITFunction, "run", compiled)
    for kind in kinds:
        kv_heads, own_size, make = KINDS[kind]
        head_dim, label = size or own_size, f"{kind} {precision}"
        cache = make(prompt(shape(kv_heads, head_dim, dtype), TOKENS))
        joined = BatchAttention([(cache, 1)])._joined
        assert joined is not None
        entries = torch.zeros((1, kv_heads, head_dim), dtype=dtype)
        joined.write(1, entries, entries)
        joined.attend(1, queries(cache.shape, 1))


def resources(kernel: Any) -> dict[str, int]:
    """Bytes of shared memory, registers of a thread, and bytes of stack that it spills to."""
    with tempfile.TemporaryDirectory() as directory:
        binary = Path(directory) / "kernel.cubin"
        binary.write_bytes(kernel.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(binary)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(found[1]) for name in ("REG", "STACK") if (found := re.search(rf"{name}:(\d+)", usage)))
    return {"shared": kernel.metadata.shared, "registers": registers, "stack": stack}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
