"""The time at which a device has done everything that it was asked to do."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds of a clock that only moves forward; on CUDA, where calls return early, waits for them first."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
