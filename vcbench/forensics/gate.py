"""What the lossless gate runs before it looks: a configuration, with or without a fault built into the engine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from vcbench import registry
from vcbench.backends.base import MakeBackend
from vcbench.backends.bundled.backend import Bundled
from vcbench.config.sampling import Sampling
from vcbench.config.schema import RunConfig
from vcbench.errors import UsageError
from vcbench.forensics.faulty import FaultySession
from vcbench.forensics.tiny import (
    CASCADE,
    CELLS,
    DRAWN,
    GATE_CELLS,
    GATE_METHODS,
    GREEDY,
    PENALISED,
    TINY,
    gate_config,
    tiny_config,
)
from vcbench.lossless.faults import find_fault
from vcbench.runners.run import execute

DEMO_REQUESTS = 8


def run_for_gate(config: RunConfig, *, fault: str | None, console: Console, beside: str | None = None) -> Path:
    """Carries out a configuration and returns the run's directory; a fault has one of its own, beside the sound run.

    `beside` is the sound run's name where its own is that of another run.

    Raises UsageError where the fault could not show in this configuration.
    """
    if fault is None:
        return execute(config, console=console, beside=beside)
    if obstacle := fault_obstacle(config, fault):
        raise UsageError(f"fault {fault} would do nothing here: {obstacle}")
    named = replace(config, name=f"{config.name}-{fault}")
    return execute(named, console=console, backend=broken(fault))


def broken(fault: str | None) -> MakeBackend:
    """The bundled backend with a fault built in, which every cell's id names; None for a sound one."""
    return partial(Bundled, session=FaultySession(fault), fault=fault)


def tiny_run() -> RunConfig:
    """The gate's own small run, in which every fault can show."""
    return gate_config(TINY)


def demo_run(fault: str) -> RunConfig:
    """A still smaller one that can show the fault: kernels that it does not need are not compiled for it."""
    needs = find_fault(fault).needs
    control = tuple(cell for cell in GATE_CELLS if cell.method == "none")
    cells = {"quantise": CELLS, "levels": CASCADE, "none": (*CELLS[:1], *control)}.get(needs, CELLS[:2])
    sampling = {"penalty": PENALISED, "draw": DRAWN}.get(needs, GREEDY)
    return tiny_config("demo", requests=DEMO_REQUESTS, methods=GATE_METHODS, cells=cells, sampling=sampling)


def fault_obstacle(config: RunConfig, fault: str) -> str:
    """Why a fault cannot show in a configuration; empty if it can."""
    needs = find_fault(fault).needs
    drafting = [cell for cell in config.cells if cell.arm == "vericache"]
    if not drafting:
        return "no cell drafts and verifies"
    if needs == "penalty":
        penalised = any(_penalises(task.sampling) for task in config.tasks)
        return "" if penalised else "no task has a penalty (sampling.repetition_penalty)"
    if needs == "draw":
        drawn = any(task.sampling.temperature for task in config.tasks)
        return "" if drawn else "no task draws its tokens (sampling.temperature)"
    if needs == "levels":
        return "" if any(len(cell.drafting) > 1 for cell in drafting) else "no cell has two levels below the full cache"
    if needs == "batch":
        return "" if config.engine.batch_size > 1 else "no two requests are decoded together (engine.batch_size)"
    methods = [config.methods[name] for cell in drafting for name in cell.methods]
    kinds = {registry.lookup("compressor", method.compressor).kind for method in methods}
    wanted = "keeps everything" if needs == "none" else f"can {needs}"
    return "" if not needs or needs in kinds else f"it needs a method that {wanted}; here are {', '.join(kinds)}"


def _penalises(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)
