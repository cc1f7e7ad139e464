"""What the shell offers when a word of the command line is completed; nothing here loads a model or raises."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from vcbench.cli.runs import RUNS, names_of_runs

CONFIGS = ("*.yaml", "*.yml")


def complete_config(incomplete: str) -> list[str]:
    """Configuration files, and directories on the way to them; of the working directory also those of `configs`."""
    head, _, tail = incomplete.rpartition("/")
    places = [Path(f"{head}/")] if head or incomplete.startswith("/") else [Path(), Path("configs")]
    found: list[str] = []
    with contextlib.suppress(OSError, RuntimeError):
        for place in places:
            expanded = place.expanduser()
            for entry in sorted(expanded.iterdir()) if expanded.is_dir() else ():
                shown = str(place / entry.name)
                if entry.suffix in (".yaml", ".yml"):
                    found.append(shown)
                elif entry.is_dir() and not entry.name.startswith(".") and place != Path("configs"):
                    found.append(shown + "/")
    return [name for name in found if name.startswith(incomplete) or (not head and Path(name).name.startswith(tail))]


def complete_run(incomplete: str) -> list[str]:
    """Names of runs under `runs/`, or their paths where the word begins like one."""
    with contextlib.suppress(OSError):
        names = names_of_runs()
        prefix = f"{RUNS}{os.sep}"
        if incomplete.startswith(prefix):
            names = [prefix + name for name in names]
        return [name for name in names if name.startswith(incomplete)]
    return []


def complete_target(incomplete: str) -> list[str]:
    """What `check` takes: runs and configurations."""
    return [*complete_run(incomplete), *complete_config(incomplete)]


def complete_task(incomplete: str) -> list[str]:
    """Registered tasks."""
    return [name for name in _registered("task") if name.startswith(incomplete)]


def complete_compressor(incomplete: str) -> list[str]:
    """Registered compressors."""
    return [name for name in _registered("compressor") if name.startswith(incomplete)]


def complete_fitted(incomplete: str) -> list[str]:
    """Compressors that are fitted to a model."""
    from vcbench import registry

    with contextlib.suppress(Exception):
        fitted = [name for name in _registered("compressor") if _is_fitted(registry.lookup("compressor", name))]
        return [name for name in fitted if name.startswith(incomplete)]
    return []


def complete_model(incomplete: str) -> list[str]:
    """Models known by name."""
    from vcbench.models.catalog import known_ids

    return [name for name in known_ids() if name.startswith(incomplete)]


def complete_gpu(incomplete: str) -> list[str]:
    """GPUs that a plan can be made for."""
    from vcbench.runners.gpus import GPUS

    return [name for name in GPUS if name.lower().startswith(incomplete.lower())]


def complete_fault(incomplete: str) -> list[str]:
    """Faults that the gate can build in."""
    from vcbench.lossless.faults import FAULTS

    return [name for name in FAULTS if name.startswith(incomplete)]


def complete_request(ctx: typer.Context, incomplete: str) -> list[str]:
    """Requests of the run that stands before."""
    from vcbench.cli.runs import find_run
    from vcbench.records.reader import load_run

    with contextlib.suppress(Exception):
        # An option whose value is still to come keeps the arguments from being read; they are then left over.
        run = ctx.params.get("run") or ctx.args[0]
        names = dict.fromkeys(request for _, request in load_run(find_run(run)).prompts)
        return [name for name in names if name.startswith(incomplete)]
    return []


def complete_setting(incomplete: str) -> list[str]:
    """`--set`: names of compressors and tasks after the keys that take them."""
    match = re.fullmatch(r"(methods\..+\.compressor=|tasks\.\d+\.name=)(.*)", incomplete)
    if match is None:
        return []
    offered = complete_compressor(match[2]) if "compressor" in match[1] else complete_task(match[2])
    return [match[1] + name for name in offered]


def _registered(kind: str) -> Iterator[str]:
    """Names as the package's modules and the entry points have them: a module is named as what it registers."""
    from vcbench import registry

    with contextlib.suppress(Exception):
        yield from registry.names(kind)


def _is_fitted(cls: Any) -> bool:
    return str(cls.calibrate.__qualname__) != "Compressor.calibrate"
