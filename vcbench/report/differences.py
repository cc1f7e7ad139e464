"""Whether runs can stand side by side, and what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vcbench.errors import UsageError
from vcbench.metrics.conditions import differing_conditions
from vcbench.records.reader import Run

FACTS = {
    "model": (("model", "id"), ("model", "weights_sha256")),
    "code": (("git", "commit"), ("versions",)),
}


def differences(runs: Sequence[Run]) -> list[str]:
    """What differs between the runs, one sentence each.

    Raises UsageError where a join on (task, request) would pair different things.
    """
    _refuse_repeated(runs)
    _refuse_other_prompts(runs)
    notes = []
    for subject, facts in FACTS.items():
        differing = [fact for fact in facts if len({repr(_fact(run.provenance, fact)) for run in runs}) > 1]
        if differing:
            notes.append(f"the runs differ in {subject} ({', '.join(map('.'.join, differing))}){_caution(subject)}")
    if conditions := differing_conditions(runs):
        notes.insert(0, f"speeds of these runs are not comparable with one another: {'; '.join(conditions)}")
    shared = set.intersection(*(set(run.prompts) for run in runs)) if runs else set()
    sizes = {run.name: len(run.prompts) for run in runs}
    if any(size != len(shared) for size in sizes.values()):
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        notes.append(f"the runs answer different prompts: {len(shared)} in common, of {listed}")
    notes += [f"{run.name} is not complete" for run in runs if not run.complete]
    return notes


def exclusions(runs: Sequence[Run]) -> list[str]:
    """Rows of each task's data that could not be asked, counted, with the first reason."""
    notes = []
    for run in runs:
        named = f"{run.name}: " if len(runs) > 1 else ""
        for task, listed in (run.provenance.get("excluded") or {}).items():
            if listed:
                asked = sum(name == task for name, _ in run.prompts)
                first = f"{listed[0].get('id')}: {listed[0].get('reason')}"
                notes.append(
                    f"{named}{len(listed)} of {len(listed) + asked} rows of {task} excluded; the first: {first}"
                )
    return notes


def _caution(subject: str) -> str:
    cautions = {"model": "each row is against its own run's full KV"}
    return f"; {cautions[subject]}" if subject in cautions else ""


def _fact(provenance: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = provenance
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _refuse_repeated(runs: Sequence[Run]) -> None:
    if not runs:
        raise UsageError("no run is given; `vcbench runs` lists them")
    seen: set[str] = set()
    for run in runs:
        place = str(run.path.resolve())
        if place in seen:
            raise UsageError(f"{run.path} is given twice; each request would be joined with itself")
        seen.add(place)


def _refuse_other_prompts(runs: Sequence[Run]) -> None:
    first: dict[tuple[str, str], tuple[str, Run]] = {}
    for run in runs:
        for key, prompt in run.prompts.items():
            known, other = first.setdefault(key, (prompt.prompt_sha256, run))
            if known != prompt.prompt_sha256:
                task, request = key
                raise UsageError(
                    f"task {task!r}, request {request!r} is another prompt in {run.path} than in {other.path} "
                    "(other text, template or tokenizer); compare these runs one at a time"
                )
