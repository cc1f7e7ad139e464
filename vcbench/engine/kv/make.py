"""Which store a model's entries go to."""

from __future__ import annotations

import torch

from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.kv.store import ExactStore
from vcbench.engine.kv.tensors import TensorStore


def make_store(shape: KVShape) -> ExactStore:
    """The store for a model's device and precision."""
    if shape.device.type == "cpu" and shape.dtype == torch.float32:
        return PagedStore(shape)
    return TensorStore(shape)
