"""What well-known GPUs can do, so that a plan has times where none of them is.

Figures are the makers' data sheets' (dense, without sparsity): memory, memory bandwidth, 16-bit tensor FLOP/s. Sources:
NVIDIA A100 (2022), H100 (2024), H100 NVL (2023), H200 (2024) data sheets; RTX PRO 6000 Blackwell Workstation (2025).
The VeriCache paper (arXiv 2605.17613) ran on RTX PRO 6000 and on two H100 NVL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vcbench.errors import UsageError
from vcbench.registry import suggest
from vcbench.runners.estimate import Machine

GB = 10**9
BANDWIDTH_SHARE = 0.75
"""Of the data sheet's bandwidth, what reading weights and caches is taken to reach."""
FLOP_SHARE = 0.5
"""Of the data sheet's FLOP/s, what prefill is taken to reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU by its data sheet."""

    title: str
    memory_bytes: int
    bytes_per_s: float
    flop_per_s: float

    def machine(self) -> Machine:
        """What plans take it to reach."""
        return Machine(bytes_per_s=BANDWIDTH_SHARE * self.bytes_per_s, flop_per_s=FLOP_SHARE * self.flop_per_s)


GPUS: Mapping[str, Gpu] = {
    "A100": Gpu(title="A100 80GB SXM", memory_bytes=80 * GB, bytes_per_s=2.039e12, flop_per_s=312e12),
    "H100": Gpu(title="H100 80GB SXM", memory_bytes=80 * GB, bytes_per_s=3.35e12, flop_per_s=989e12),
    "H100-NVL": Gpu(title="H100 NVL 94GB", memory_bytes=94 * GB, bytes_per_s=3.9e12, flop_per_s=835e12),
    "RTX-PRO-6000": Gpu(title="RTX PRO 6000 96GB", memory_bytes=96 * GB, bytes_per_s=1.792e12, flop_per_s=503e12),
    "H200": Gpu(title="H200 141GB SXM", memory_bytes=141 * GB, bytes_per_s=4.8e12, flop_per_s=989e12),
}
"""By rising memory."""
FIRST_CHOICE = ("H100", "H200")


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, however it is spelt. Raises UsageError with the nearest names."""
    wanted = _plain(name)
    for known, gpu in GPUS.items():
        if wanted in (_plain(known), _plain(gpu.title)):
            return gpu
    raise UsageError(f"no figures for a GPU {name!r}; {suggest(name, list(GPUS))}")


def smallest_gpu(needed_bytes: int) -> Gpu:
    """The GPU that a plan is made for unless one is named: an H100, or an H200 where that is too small."""
    return next(
        (GPUS[name] for name in FIRST_CHOICE if GPUS[name].memory_bytes >= needed_bytes), GPUS[FIRST_CHOICE[-1]]
    )


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
