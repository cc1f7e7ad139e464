"""What the lossless gate runs before it looks: a configuration, with or without a fault built into the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vcbench import registry
from vcbench.config.sampling import Sampling
from vcbench.config.schema import RunConfig
from vcbench.errors import UsageError
from vcbench.forensics.faulty import Engine
from vcbench.forensics.tiny import CELLS, GREEDY, PENALISED, TINY, tiny_config
from vcbench.lossless.faults import find_fault
from vcbench.runners.run import execute

DEMO_REQUESTS = 8


def run_for_gate(config: RunConfig, *, fault: str | None, console: Console) -> Path:
    """Carries out a configuration and returns the run's directory; a fault has one of its own, beside the sound run.

    Raises UsageError where the fault could not show in this configuration.
    """
    if fault is None:
        return execute(config, console=console)
    if obstacle := fault_obstacle(config, fault):
        raise UsageError(f"fault {fault} would do nothing here: {obstacle}")
    return execute(replace(config, name=f"{config.name}-{fault}"), console=console, engine=Engine(fault), fault=fault)


def tiny_run(fault: str | None) -> RunConfig:
    """The gate's own small run, with the sampling that the fault needs."""
    return tiny_config(TINY, sampling=_sampling(fault))


def demo_run(fault: str) -> RunConfig:
    """A still smaller one that can show the fault: kernels that it does not need are not compiled for it."""
    cells = CELLS if find_fault(fault).needs == "quantise" else CELLS[:2]
    return tiny_config("demo", requests=DEMO_REQUESTS, cells=cells, sampling=_sampling(fault))


def _sampling(fault: str | None) -> Sampling:
    return PENALISED if fault is not None and find_fault(fault).needs == "penalty" else GREEDY


def fault_obstacle(config: RunConfig, fault: str) -> str:
    """Why a fault cannot show in a configuration; empty if it can."""
    needs = find_fault(fault).needs
    drafting = [cell for cell in config.cells if cell.arm == "vericache" and cell.method is not None]
    if not drafting:
        return "no cell drafts and verifies"
    if needs == "penalty":
        penalised = any(_penalises(task.sampling) for task in config.tasks)
        return "" if penalised else "no task has a penalty (sampling.repetition_penalty)"
    kinds = {registry.lookup("compressor", config.methods[cell.method or ""].compressor).kind for cell in drafting}
    return "" if not needs or needs in kinds else f"it needs a method that can {needs}; here are {', '.join(kinds)}"


def _penalises(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)
