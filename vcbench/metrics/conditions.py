"""What the speed of a run depends on beside its cells: where runs differ in it, their speeds are not comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vcbench.records.reader import Run

CONDITIONS = {
    "batch size": ("config", "engine", "batch_size"),
    "threads": ("provenance", "decoding_threads"),
    "processor": ("provenance", "hardware", "cpu"),
    "usable processors": ("provenance", "hardware", "usable_cpus"),
    "accelerators": ("provenance", "hardware", "gpus"),
    "device": ("provenance", "model", "device"),
    "precision": ("provenance", "model", "dtype"),
    "exactness": ("config", "engine", "exactness"),
}


def differing_conditions(runs: Sequence[Run]) -> list[str]:
    """Every condition that is not the same in all runs, with each run's value, as `batch size 2 in a, 4 in b`."""
    found = []
    for name, path in CONDITIONS.items():
        values = [_value(run, path) for run in runs]
        if any(value != values[0] for value in values):
            said = ", ".join(f"{_shown(value)} in {run.name}" for run, value in zip(runs, values, strict=True))
            found.append(f"{name} {said}")
    return found


def _value(run: Run, path: Sequence[str]) -> Any:
    value: Any = {"config": run.config, "provenance": run.provenance}
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
