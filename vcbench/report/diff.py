"""`vcbench diff`: what two runs do not have in common, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo, Run

Sections = dict[str, list[str]]
PROVENANCE = (
    "git",
    "code_sha256",
    "injected_fault",
    "model",
    "seeds",
    "decoding_threads",
    "kernels",
    "versions",
    "os",
    "environment",
    "command",
    "excluded",
    "taken_over",
)
"""Keys of the provenance that are compared; `hardware` is a section of its own, `started` always differs."""
SHOWN = 60
ABSENT = object()


def difference(first: Run, second: Run) -> Sections:
    """What differs by section, a sentence each; a section without differences is empty."""
    return {
        "configuration": list(_values(_tidy(first.config), _tidy(second.config))),
        "cells": list(_cells(first, second)),
        "prompts": list(_prompts(first, second)),
        "answers": list(_answers(first, second)),
        "counts": list(_values(_counts(first), _counts(second))),
        "provenance": _of_provenance(first, second, PROVENANCE),
        "hardware": _of_provenance(first, second, ("hardware",)),
    }


def _of_provenance(first: Run, second: Run, keys: tuple[str, ...]) -> list[str]:
    return list(_values(_chosen(first.provenance, keys), _chosen(second.provenance, keys)))


def _chosen(provenance: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: provenance[key] for key in keys if key in provenance}


def _tidy(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with its tasks by name, and without its cells, which have a section of their own."""
    tidy = {key: value for key, value in config.items() if key != "cells"}
    tasks = tidy.get("tasks")
    if isinstance(tasks, list) and all(isinstance(task, dict) and "name" in task for task in tasks):
        tidy["tasks"] = {str(task["name"]): {k: v for k, v in task.items() if k != "name"} for task in tasks}
    return tidy


def _values(first: Any, second: Any, path: str = "") -> Iterator[str]:
    """Each value that differs, by its path; a part that only one of the two has is one sentence."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            below = f"{path}.{key}" if path else str(key)
            yield from _values(first.get(key, ABSENT), second.get(key, ABSENT), below)
    elif first is ABSENT or second is ABSENT or type(first) is not type(second) or first != second:
        yield f"{printable(path)}: {_shown(first)} against {_shown(second)}"


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "nothing"
    if isinstance(value, Mapping):
        text = ", ".join(f"{key} {_shown(item)}" for key, item in value.items()) or "empty"
    elif isinstance(value, list):
        text = " ".join(map(str, value)) or "empty"
    else:
        text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    text = printable(text)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _by_label(run: Run) -> dict[tuple[str, str], CellInfo]:
    return {(cell.task or "", cell.label): cell for cell in run.cells}


def _named(key: tuple[str, str]) -> str:
    return printable(": ".join(filter(None, key)))


def _cells(first: Run, second: Run) -> Iterator[str]:
    here, there = _by_label(first), _by_label(second)
    for run, own, other in ((first, here, there), (second, there, here)):
        for key in (key for key in own if key not in other):
            yield f"{_named(key)}: only in {printable(run.name)}"
    for key, cell in here.items():
        if key in there and there[key].id != cell.id:
            yield f"{_named(key)}: what its answers depend on differs (ids {cell.id} and {there[key].id})"


def _prompts(first: Run, second: Run) -> Iterator[str]:
    for task in dict.fromkeys([*first.tasks, *second.tasks]):
        here, there = (
            {name: line for (of, name), line in run.prompts.items() if of == task} for run in (first, second)
        )
        for run, own, other in ((first, here, there), (second, there, here)):
            alone = [name for name in own if name not in other]
            if alone:
                yield f"{printable(task)}: {_counted(alone)} only in {printable(run.name)}"
        shared = [name for name in here if name in there]
        changed = [name for name in shared if here[name].prompt_sha256 != there[name].prompt_sha256]
        if changed:
            yield f"{printable(task)}: {_counted(changed)} of the same name with other tokens"
        targets = [name for name in shared if here[name].target_sha256 != there[name].target_sha256]
        if targets:
            yield f"{printable(task)}: {_counted(targets)} with another target"


def _counted(names: list[str]) -> str:
    prompts = "1 prompt" if len(names) == 1 else f"{len(names)} prompts"
    return f"{prompts} ({printable(names[0])}{', ...' if len(names) > 1 else ''})"


def _answers(first: Run, second: Run) -> Iterator[str]:
    """Cells of the same label whose answers to the same prompts are other tokens."""
    here, there = _by_label(first), _by_label(second)
    for key in here:
        if key not in there:
            continue
        pairs = [
            (line, other)
            for (cell, task, request), line in first.requests.items()
            if cell == here[key].id and here[key].answers(task)
            if (other := second.requests.get((there[key].id, task, request))) is not None
            if other.prompt_sha256 == line.prompt_sha256
        ]
        differing = sum(line.token_ids != other.token_ids for line, other in pairs)
        if differing:
            yield f"{_named(key)}: {differing} of {len(pairs)} answers to the same prompts are other tokens"


def _counts(run: Run) -> dict[str, Any]:
    return {
        "state": "complete" if run.complete else "unfinished",
        "cells": len(run.cells),
        "prompts": len(run.prompts),
        "answers": sum(line.error is None for line in run.requests.values()),
        "failed": sum(line.error is not None for line in run.requests.values()),
        "output tokens": sum(len(line.token_ids) for line in run.requests.values()),
        "divergences": len(run.divergences),
        "batches": len(run.batches),
    }
