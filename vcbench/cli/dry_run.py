"""`vcbench run --dry-run`: the plan with its estimates; nothing is decoded, fetched or written."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vcbench import registry
from vcbench.backends.bundled.identity import identify, with_model
from vcbench.backends.cells import UNKNOWN, Identity, Plan
from vcbench.cli.output import next_command, notes, results, table, write_json
from vcbench.config.options import build_options
from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.errors import ModelError
from vcbench.models.catalog import known_architecture
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.runners.display import spoken
from vcbench.runners.estimate import ASSUMED_ACCEPTANCE, PlanEstimate, estimate, measure_machine
from vcbench.runners.expected import Expected, absent_calibrations, expected_prompts
from vcbench.runners.gpus import BANDWIDTH_SHARE, FLOP_SHARE, Gpu, find_gpu, smallest_gpu
from vcbench.runners.notes import model_notes, resolved_sampling
from vcbench.runners.plan import build_plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vcbench.tasks.base import Task

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Everything that is shown. gpu: the one that the times are for where it is not here; absent: what to get first."""

    plan: Plan
    identity: Identity
    tasks: Mapping[str, Expected]
    figures: PlanEstimate
    gpu: Gpu | None
    absent: tuple[str, ...]
    missing: ModelError | None
    notes: tuple[str, ...] = ()

    @property
    def cache_bytes(self) -> int:
        """The most that caches take at once: a cell's full ones and its drafts."""
        return max((row.full_bytes + (row.draft_bytes or 0) for row in self.figures.cells), default=0)

    @property
    def counted(self) -> bool:
        """Whether all prompts were tokenised by the model's own tokenizer."""
        return all(task.basis == "counted" for task in self.tasks.values())


def show_plan(config: RunConfig, *, gpu: str | None, as_json: bool, command: str) -> None:
    """Prints cells, prompts, bytes and time; for a known model also where neither weights nor data are here.

    gpu: the GPU that the times are for; without one the device that is here, or a usual one where there is none.
    """
    if gpu is not None:
        named = find_gpu(gpu)
        config = replace(config, model=replace(config.model, device="cuda"))
    outlook = _outlook(config, named if gpu is not None else None)
    if as_json:
        write_json(_document(outlook))
        return
    console = results()
    console.print(f"plan of {config.name} (estimates)", markup=False)
    for head, each in _tables(outlook):
        console.print(f"\n{head}", markup=False)
        console.print(each)
    _remarks(outlook)
    _next(outlook, command)


def _outlook(config: RunConfig, named: Gpu | None) -> Outlook:
    identity = identify(config, planning=True)
    missing: ModelError | None = None
    try:
        files: ModelFiles | None = resolve_model(config.model)
    except ModelError as error:
        files, missing = None, error
    architecture = files.architecture if files else known_architecture(config.model.id)
    if architecture is None:
        assert missing is not None
        raise missing
    if files is not None:
        from vcbench.runners.setup import check_weights

        check_weights(files)
        config = resolved_sampling(config, files)
        identity = with_model(identity, files)
    commands, calibrations = absent_calibrations(config, files)
    plan = build_plan(config, architecture=architecture, identity=identity, calibrations=calibrations)
    plan = replace(plan, final=plan.final and not commands)
    tokenizer = _tokenizer(files)
    context = architecture.max_context
    tasks = {task.name: expected_prompts(config, task, tokenizer, context) for task in config.tasks}
    said = [*(model_notes(config, files, tokenizer) if files is not None else ())]
    said += [note for task in tasks.values() for note in task.notes]
    lengths = {name: task.lengths for name, task in tasks.items()}
    here = UNKNOWN not in identity.kernels.values()
    bytes_only = estimate(plan, lengths, dtype=identity.dtype, machine=None)
    outlook = Outlook(
        plan=plan,
        identity=identity,
        tasks=tasks,
        figures=bytes_only,
        gpu=named,
        absent=_absent(config, missing, tasks, commands),
        missing=missing,
        notes=tuple(said),
    )
    if named is None and not here:
        outlook = replace(outlook, gpu=smallest_gpu(bytes_only.weights_bytes + outlook.cache_bytes))
    machine = outlook.gpu.machine() if outlook.gpu else measure_machine(identity.device)
    return replace(outlook, figures=estimate(plan, lengths, dtype=identity.dtype, machine=machine))


def _tokenizer(files: ModelFiles | None) -> Any:
    if files is None:
        return None
    from vcbench.models.tokenizer import Tokenizer

    return Tokenizer.from_files(files)


def _absent(
    config: RunConfig, missing: ModelError | None, tasks: Mapping[str, Expected], calibrations: list[str]
) -> tuple[str, ...]:
    """What must be here before the run, in the order in which it can be had."""
    model = []
    if missing is not None:
        revision = () if config.model.revision is None else ("--revision", config.model.revision)
        model = [shlex.join(["vcbench", "model", "fetch", config.model.id, *revision])]
    data = [each for task in tasks.values() for each in task.absent]
    return tuple(dict.fromkeys([*model, *data, *calibrations]))


def _task(task: TaskConfig) -> Task:
    made: Task = registry.lookup("task", task.name)(build_options("task", task.name, task.options))
    return made


def _tables(outlook: Outlook) -> Iterator[tuple[str, Table]]:
    """A table for each task, headed by what all of its cells share."""
    for task in outlook.plan.config.tasks:
        rows = [row for row in outlook.figures.cells if row.cell.task.name == task.name]
        shown = [
            [
                row.cell.label,
                "-" if not row.cell.compressing else _size(row.draft_bytes),
                "-" if not row.cell.compressing else _time(row.compress_s),
                _time(row.decode_s),
            ]
            for row in rows
        ]
        times = [each for row in rows for each in (row.compress_s, row.decode_s)]
        total = None if None in times else sum(filter(None, times))
        head = (
            f"{task.name}: {rows[0].prompts} prompts, {rows[0].prompt_tokens:,} tokens, up to {task.max_tokens} new "
            f"each; full KV {_size(rows[0].full_bytes)} a batch; {_time(total)}"
        )
        yield head, table("", ["cell", "draft KV", "compress", "decode"], shown, right=(1, 2, 3), wrap=(0,))


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.1f} MiB"


def _time(seconds: float | None) -> str:
    """The time in words; short ones to a tenth of a second."""
    if seconds is None:
        return "unknown"
    return f"{seconds:.1f} s" if seconds < 59.5 else spoken(seconds)


def _remarks(outlook: Outlook) -> None:
    say, config = notes(), outlook.plan.config
    for note in outlook.notes:
        say.print(f"note: {note}", markup=False)
    for task in config.tasks:
        _about_prompts(outlook, task, say)
    asking_on = [task.name for task in config.tasks if _task(task).has_follow_ups()]
    if asking_on:
        say.print(f"not counted: further turns of {', '.join(asking_on)}, which depend on the answers")
    _about_memory(outlook, say)
    _about_time(outlook, say)
    if outlook.absent:
        say.print("to be fetched first:")
        for command in outlook.absent:
            say.print(f"  {command}", markup=False)


def _about_prompts(outlook: Outlook, task: TaskConfig, say: Console) -> None:
    expected = outlook.tasks[task.name]
    if expected.basis != "counted":
        say.print(f"{task.name}: prompts are {expected.basis}", markup=False)


def _about_memory(outlook: Outlook, say: Console) -> None:
    weights, caches = outlook.figures.weights_bytes, outlook.cache_bytes
    needed = f"{weights / GIB:.1f} GiB of weights and up to {caches / GIB:.1f} GiB of caches"
    say.print(f"estimate for {outlook.identity.device}, {outlook.identity.dtype}: {needed}")
    if outlook.gpu is not None and weights + caches > outlook.gpu.memory_bytes:
        has = f"the {outlook.gpu.memory_bytes / GIB:.1f} GiB of an {outlook.gpu.title}"
        remedy = "no batch fits" if weights > outlook.gpu.memory_bytes else "lower engine.batch_size"
        say.print(f"! that is more than {has}: {remedy}, or plan for another with --gpu")


def _about_time(outlook: Outlook, say: Console) -> None:
    machine, figures, gpu = outlook.figures.machine, outlook.figures, outlook.gpu
    assert machine is not None
    parts = f"prefill {_time(figures.prefill_s)} once, {_time(figures.total_s)} in all"
    accepted = f"{ASSUMED_ACCEPTANCE:.0%} of each draft taken to be accepted"
    if gpu is not None:
        say.print(
            f"{parts}, on an {gpu.title}: {BANDWIDTH_SHARE:.0%} of its {gpu.bytes_per_s / 1e12:.2f} TB/s and "
            f"{FLOP_SHARE:.0%} of its {gpu.flop_per_s / 1e12:.0f} TFLOP/s, as its maker states them, and "
            f"{accepted}; an estimate, not a measurement"
        )
    else:
        say.print(
            f"{parts}, at {machine.bytes_per_s / 1e9:.1f} GB/s and {machine.flop_per_s / 1e9:.0f} GFLOP/s as just "
            f"measured; {accepted}"
        )
    if outlook.identity.device == "cuda" and UNKNOWN in outlook.identity.kernels.values():
        say.print("no cuda device is here: the run itself would be refused")


def _next(outlook: Outlook, command: str) -> None:
    """The first thing to fetch, or else the run itself; nothing where it would be refused."""
    first = outlook.absent[0] if outlook.absent else ""
    if first and not first.startswith("the file "):
        next_command(*shlex.split(first))
    elif not first and UNKNOWN not in outlook.identity.kernels.values():
        next_command(*shlex.split(command))
    else:
        next_command("vcbench", "doctor")


def _document(outlook: Outlook) -> dict[str, Any]:
    plan, figures, gpu = outlook.plan, outlook.figures, outlook.gpu
    return {
        "name": plan.config.name,
        "model": plan.config.model.id,
        "device": outlook.identity.device,
        "gpu": None if gpu is None else gpu.title,
        "dtype": outlook.identity.dtype,
        "prompts_tokenised": outlook.counted,
        "assumed_acceptance": ASSUMED_ACCEPTANCE,
        "weights_bytes": figures.weights_bytes,
        "cache_bytes": outlook.cache_bytes,
        "memory_bytes": None if gpu is None else gpu.memory_bytes,
        "prefill_s": figures.prefill_s,
        "total_s": figures.total_s,
        "absent": list(outlook.absent),
        "notes": list(outlook.notes),
        "tasks": [
            {"name": name, "prompts": len(task.lengths), "prompt_tokens": sum(task.lengths), "basis": task.basis}
            for name, task in outlook.tasks.items()
        ],
        "cells": [
            {
                "id": row.cell.id if plan.final else None,
                "task": row.cell.task.name,
                "label": row.cell.label,
                "prompts": row.prompts,
                "prompt_tokens": row.prompt_tokens,
                "full_bytes": row.full_bytes,
                "draft_bytes": row.draft_bytes,
                "compress_s": row.compress_s,
                "decode_s": row.decode_s,
            }
            for row in figures.cells
        ],
    }
