"""Which cells a model can serve, judged from its architecture alone, before any weight is read."""

from __future__ import annotations

from collections.abc import Sequence

from vcbench import registry
from vcbench.config.options import build_options
from vcbench.config.schema import CellConfig, MethodConfig, TaskConfig, longest
from vcbench.models.architecture import Architecture


def task_obstacle(task: TaskConfig, architecture: Architecture) -> str | None:
    """Why no prompt of the task can be answered by the model, or None."""
    limit = architecture.max_context
    if task.max_tokens >= limit:
        return f"max_tokens {task.max_tokens} leaves no room for a prompt in the model's context of {limit} tokens"
    return None


def sampling_obstacle(task: TaskConfig, architecture: Architecture) -> str | None:
    """Why the task's sampling makes no sense to the model, or None."""
    beyond = [token for token in task.sampling.logit_bias if token >= architecture.vocab_size]
    if beyond:
        return f"logit_bias names token {beyond[0]}; the model's vocabulary has {architecture.vocab_size}"
    return None


def cell_obstacle(cell: CellConfig, methods: Sequence[MethodConfig], architecture: Architecture) -> str | None:
    """Why the cell cannot run on the model, or None. methods: those of its levels."""
    limit = architecture.max_context
    for level in cell.drafting:
        if longest(level.draft_length) >= limit:
            return f"draft_length {longest(level.draft_length)} does not fit the model's context of {limit} tokens"
    for method in methods:
        compressor = registry.lookup("compressor", method.compressor)
        reason = compressor.unsupported(build_options("compressor", method.compressor, method.options), architecture)
        if reason:
            return f"compressor `{method.compressor}` cannot serve this model: {reason}"
    return None


def device_obstacle(cell: CellConfig, device: str, dtype: str) -> str | None:
    """Why the cell's full cache cannot lie where it is wanted, or its drafts not read other weights, or None."""
    if cell.full_cache == "disk" and (device, dtype) != ("cpu", "float32"):
        return f"full_cache: disk is for float32 on CPU, here are {dtype} on {device}"
    if cell.draft_weights != "full" and (device, dtype) != ("cpu", "float32"):
        return f"draft_weights: {cell.draft_weights} is for float32 on CPU, here are {dtype} on {device}"
    return None
