"""Whether attention runs in Triton kernels."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch


def on_gpu(device: torch.device) -> bool:
    """Whether the Triton form of the kernels is used; torch brings Triton along wherever it brings CUDA on Linux."""
    return device.type == "cuda" and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
