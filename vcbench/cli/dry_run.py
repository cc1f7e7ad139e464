"""`vcbench run --dry-run`: the plan with its estimates; nothing is decoded and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vcbench import registry
from vcbench.cli.output import notes, results, table, write_json
from vcbench.config.options import build_options
from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.errors import ModelError
from vcbench.models.catalog import known_architecture
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.runners.calibrations import find_calibrations
from vcbench.runners.estimate import ASSUMED_ACCEPTANCE, ASSUMED_PROMPT_TOKENS, PlanEstimate, estimate, measure_machine
from vcbench.runners.notes import model_notes, resolved_sampling
from vcbench.runners.plan import UNKNOWN, Identity, Plan, build_plan, identify, with_model

if TYPE_CHECKING:
    from rich.table import Table

    from vcbench.tasks.base import Task


def show_plan(config: RunConfig, *, as_json: bool) -> None:
    """Prints cells, prompts, bytes and time; for a known model also where its weights are not on this machine."""
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
    calibrations = find_calibrations(config, files) if files is not None else {}
    plan = build_plan(config, architecture=architecture, identity=identity, calibrations=calibrations)
    tokens, said = _prompt_tokens(config, files)
    machine = None if UNKNOWN in identity.kernels.values() else measure_machine(identity.device)
    figures = estimate(plan, tokens, dtype=identity.dtype, machine=machine)
    if as_json:
        write_json(_document(plan, identity, figures) | {"notes": said})
        return
    results().print(_table(plan, figures))
    for note in said:
        notes().print(f"note: {note}", markup=False)
    _remarks(config, identity, figures, missing)


def _prompt_tokens(config: RunConfig, files: ModelFiles | None) -> tuple[Mapping[str, Sequence[int]], list[str]]:
    """Lengths of every task's prompts, assumed where there is no tokenizer yet, and what the run itself would say."""
    if files is None:
        return {task.name: [ASSUMED_PROMPT_TOKENS] * (task.limit or 1) for task in config.tasks}, []
    from vcbench.models.tokenizer import Tokenizer
    from vcbench.runners.setup import exclusions, make_prompts

    tokenizer, tokens, said = Tokenizer.from_files(files), {}, []
    for task in config.tasks:
        source = _task(task)
        prompts = make_prompts(task, source, tokenizer, config.seed, files.architecture.max_context)
        tokens[task.name] = [len(prompt.ids) for prompt in prompts]
        said += exclusions(task.name, source, len(prompts))
    return tokens, [*model_notes(config, files, tokenizer), *said]


def _task(task: TaskConfig) -> Task:
    made: Task = registry.lookup("task", task.name)(build_options("task", task.name, task.options))
    return made


def _table(plan: Plan, figures: PlanEstimate) -> Table:
    columns = ["task", "cell", "prompts", "tokens", "full MiB", "draft MiB", "decode s"]
    rows = [
        [
            row.cell.task.name,
            row.cell.label,
            str(row.prompts),
            str(row.prompt_tokens),
            _mib(row.full_bytes),
            "-" if row.cell.method is None else _mib(row.draft_bytes),
            "unknown" if row.decode_s is None else f"{row.decode_s:.1f}",
        ]
        for row in figures.cells
    ]
    return table(f"plan of {plan.config.name} (estimates)", columns, rows, right=(2, 3, 4, 5, 6), wrap=(1,))


def _mib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**20:.1f}"


def _remarks(config: RunConfig, identity: Identity, figures: PlanEstimate, missing: ModelError | None) -> None:
    say = notes()
    machine, total = figures.machine, figures.total_s
    asking_on = [task.name for task in config.tasks if _task(task).has_follow_ups()]
    if asking_on:
        say.print(f"not counted: further turns of {', '.join(asking_on)}, which depend on the answers")
    say.print(f"estimate for {identity.device}, {identity.dtype}: weights {figures.weights_bytes / 2**30:.2f} GiB")
    if machine is None or figures.prefill_s is None:
        say.print(f"no {identity.device} device is here, so no times; the run itself would be refused")
    else:
        say.print(
            f"prefill {figures.prefill_s:.1f} s once, {'unknown' if total is None else f'{total:.0f} s'} in all, at "
            f"{machine.bytes_per_s / 1e9:.1f} GB/s and {machine.flop_per_s / 1e9:.0f} GFLOP/s as just measured; "
            f"{ASSUMED_ACCEPTANCE:.0%} of each draft taken to be accepted"
        )
    if missing is not None:
        say.print(
            f"the prompts are not tokenised yet: {ASSUMED_PROMPT_TOKENS} tokens each are assumed, and one prompt for a "
            f"task without `limit`. {missing}",
            markup=False,
        )


def _document(plan: Plan, identity: Identity, figures: PlanEstimate) -> dict[str, Any]:
    return {
        "name": plan.config.name,
        "model": plan.config.model.id,
        "device": identity.device,
        "dtype": identity.dtype,
        "prompts_tokenised": plan.final,
        "assumed_acceptance": ASSUMED_ACCEPTANCE,
        "weights_bytes": figures.weights_bytes,
        "prefill_s": figures.prefill_s,
        "total_s": figures.total_s,
        "cells": [
            {
                "id": row.cell.id if plan.final else None,
                "task": row.cell.task.name,
                "label": row.cell.label,
                "prompts": row.prompts,
                "prompt_tokens": row.prompt_tokens,
                "full_bytes": row.full_bytes,
                "draft_bytes": row.draft_bytes,
                "decode_s": row.decode_s,
            }
            for row in figures.cells
        ],
    }
