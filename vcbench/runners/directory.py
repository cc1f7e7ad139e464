"""Where a run is written: a new directory, the one to be resumed, or a new one beside or in place of another run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from vcbench.config.load import dump_config
from vcbench.config.paths import user_path
from vcbench.errors import RecordError
from vcbench.records.head import head_problem
from vcbench.records.provenance import command
from vcbench.records.reader import Run, load_run
from vcbench.records.schema import PromptLine
from vcbench.records.store import RunDirectory, archive
from vcbench.runners import recording
from vcbench.runners.carry import Carried, carry, other_question
from vcbench.runners.setup import Workbench


def open_run(bench: Workbench, console: Console, *, beside: str | None = None) -> RunDirectory:
    """The run's directory, locked.

    A run of that name with the same cells is continued, whatever prompts were added to it, taken from it or put into
    another order. One with other cells or with a prompt that has changed stays as it is: with other cells and `beside`,
    which is then the new run's name, where it is; else in an archive. What it holds of the new one is taken over, and
    all that is said.
    """
    path = user_path(bench.config.output_dir) / bench.config.name
    if not RunDirectory.exists(path):
        return RunDirectory.create(path, dump_config(bench.config), recording.provenance(bench))
    try:
        run = load_run(path, strict=False)
    except RecordError as error:
        there = archive(path)
        console.print(f"{path} cannot be read ({error}); it is now {there}", markup=False)
        return RunDirectory.create(path, dump_config(bench.config), recording.provenance(bench))
    difference = what_differs(bench, run)
    if difference is None:
        return _continued(bench, run, console)
    if beside is not None and beside != bench.config.name and _cells_now(bench) != _cells_then(run):
        console.print(f"{path} is left alone: it holds another run ({difference}). This one is {beside}", markup=False)
        bench = replace(bench, config=replace(bench.config, name=beside))
        if RunDirectory.exists(path.with_name(beside)):
            return open_run(bench, console)
        return _with_what_is_known(bench, carry(run, bench), path, console)
    carried = carry(run, bench)
    there = archive(path)
    console.print(f"{path} holds another run ({difference}); it is now {there}", markup=False)
    return _with_what_is_known(bench, carried, there, console)


def what_differs(bench: Workbench, run: Run) -> str | None:
    """Why a run on disk is not this one, or None if it can be continued."""
    if problem := head_problem(run.path, run.provenance):
        return problem
    now, then = _cells_now(bench), _cells_then(run)
    if now.keys() != then.keys():
        return "other cells"
    if now != then:
        changed = [label for (task, label), cell in now.items() if then[task, label] != cell]
        return f"what its answers depend on has changed: {_why(bench, run.provenance)}; cells: {', '.join(changed)}"
    threads = bench.backend.facts().get("decoding_threads")
    if run.provenance.get("decoding_threads") != threads:
        return f"prefilled with {run.provenance.get('decoding_threads')} threads, now {threads}"
    return _other_prompts(bench, recorded_prompts(run))


def _cells_now(bench: Workbench) -> dict[tuple[str, str], str]:
    return {(cell.task.name, cell.label): cell.id for cell in bench.plan.cells}


def _cells_then(run: Run) -> dict[tuple[str, str], str]:
    return {(cell.task or "", cell.label): cell.id for cell in run.cells}


def recorded_prompts(run: Run) -> dict[tuple[str, str], PromptLine]:
    """Every first prompt in the records, in their order, whether the configuration still asks it or not."""
    with_all = load_run(run.path, strict=False, all_prompts=True) if "asked" in run.provenance else run
    follow_ups = {(turn.task, turn.follow_up) for turn in with_all.turns.values()}
    return {key: line for key, line in with_all.prompts.items() if key not in follow_ups}


def _other_prompts(bench: Workbench, recorded: dict[tuple[str, str], PromptLine]) -> str | None:
    """A prompt that is recorded under the same name as another one; or that none is asked of those recorded."""
    for task, prompts in bench.prompts.items():
        followed = bench.sources[task].has_follow_ups()
        known = [(prompt, recorded[task, prompt.id]) for prompt in prompts if (task, prompt.id) in recorded]
        for prompt, line in known:
            if difference := other_question(prompt, line, followed=followed):
                return difference.format(f"prompt {prompt.id} of task {task}")
        if not known and any(name == task for name, _ in recorded):
            return f"none of its prompts of task {task} is asked now"
    return None


def _continued(bench: Workbench, run: Run, console: Console) -> RunDirectory:
    """The run opened, once its configuration says which of the recorded prompts are asked and in which order."""
    directory = RunDirectory.open(run.path)
    recorded = list(recorded_prompts(run))
    wanted = {task: [prompt.id for prompt in prompts] for task, prompts in bench.prompts.items()}
    plain = all(_begins([name for of, name in recorded if of == task], names) for task, names in wanted.items())
    if (None if plain else wanted) != run.provenance.get("asked"):
        aside = sum(name not in wanted.get(task, ()) for task, name in recorded)
        provenance = {key: value for key, value in run.provenance.items() if key != "asked"}
        if not plain:
            provenance["asked"] = wanted
        provenance["revised"] = [*_listed(run.provenance.get("revised")), _revision(aside)]
        try:
            directory.revise(dump_config(bench.config), provenance)
        except BaseException:
            directory.close()
            raise
        if aside:
            count = f"{aside} of {len(recorded)} recorded prompts are"
            console.print(f"{run.path}: {count} not asked now; they stay in its records, uncounted", markup=False)
    return directory


def _begins(recorded: list[str], wanted: list[str]) -> bool:
    """Whether the records hold the first of the prompts that are wanted, and no others."""
    return wanted[: len(recorded)] == recorded


def _revision(aside: int) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
        "prompts_set_aside": aside,
    }


def _listed(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, list) else ()


def _with_what_is_known(bench: Workbench, carried: Carried, source: Path, console: Console) -> RunDirectory:
    """A new run, with the lines that an earlier one holds for it; `source` is where that lies now."""
    path = user_path(bench.config.output_dir) / bench.config.name
    provenance = recording.provenance(bench)
    if carried.answers:
        provenance["taken_over"] = carried.entry(source.name)
        if "opened" in carried.source.provenance:
            provenance["opened"] = carried.source.provenance["opened"]
    directory = RunDirectory.create(path, dump_config(bench.config), provenance)
    if carried.obstacle:
        console.print(f"nothing is taken over from {source}: {carried.obstacle}", markup=False)
    if not carried.answers:
        return directory
    try:
        directory.take_over(carried.lines)
    except BaseException:
        directory.close()
        raise
    told = f"{carried.answers} answers of {', '.join(carried.cells)}"
    console.print(f"taken over from {source}, where cell and prompt are the same: {told}", markup=False)
    return directory


def _why(bench: Workbench, provenance: dict[str, object]) -> str:
    """The first of the recorded dependencies that differs, in words."""
    entry = recording.provenance(bench)
    for key, name in (("model", "the model"), ("code_sha256", "vcbench's code"), ("kernels", "the kernels' versions")):
        if entry.get(key) != provenance.get(key):
            return name
    return "the configuration"
