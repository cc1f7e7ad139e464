"""From a configuration to what a run needs: the model found, the plan, the prompts; the decoder once it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vcbench import registry
from vcbench.compressors.base import Compressor
from vcbench.config.options import build_options
from vcbench.config.sampling import Sampling
from vcbench.config.schema import Exactness, RunConfig, TaskConfig
from vcbench.engine.decoding.session import CellSetup
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.model.load import load_decoder
from vcbench.engine.types import Request
from vcbench.errors import TaskError
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.models.tokenizer import Tokenizer
from vcbench.models.weights import WeightReader
from vcbench.runners.calibrations import find_calibrations
from vcbench.runners.notes import model_notes, resolved_sampling
from vcbench.runners.plan import Cell, Identity, Plan, build_plan, identify, with_model
from vcbench.tasks.base import Exclusion, Prompt, Task, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """A run before its first forward pass."""

    config: RunConfig
    files: ModelFiles
    identity: Identity
    plan: Plan
    tokenizer: Tokenizer
    sources: Mapping[str, Task]
    prompts: Mapping[str, list[Prompt]]
    fault: str | None = None
    notes: tuple[str, ...] = ()

    def request(self, task: TaskConfig, prompt: Prompt) -> Request:
        """What the engine is asked for a prompt."""
        stop_ids = frozenset() if task.ignore_eos else self.files.stop_ids
        return Request(
            id=prompt.id,
            prompt_ids=prompt.ids,
            max_tokens=task.max_tokens,
            stop_ids=stop_ids,
            stop_strings=task.stop,
            sampling=seeded(task.sampling, self.config.seed),
        )


def prepare(config: RunConfig, *, fault: str | None = None) -> Workbench:
    """Finds the model, plans the cells and makes the prompts. Raises before anything is loaded or written."""
    files = resolve_model(config.model)
    check_weights(files)
    config = resolved_sampling(config, files)
    identity = with_model(identify(config, fault=fault), files)
    calibrations = find_calibrations(config, files)
    plan = build_plan(config, architecture=files.architecture, identity=identity, calibrations=calibrations)
    tokenizer = Tokenizer.from_files(files)
    sources = {task.name: make_task(task) for task in config.tasks}
    return Workbench(
        config=config,
        files=files,
        identity=identity,
        plan=plan,
        tokenizer=tokenizer,
        sources=sources,
        prompts={
            task.name: make_prompts(task, sources[task.name], tokenizer, config.seed, files.architecture.max_context)
            for task in config.tasks
        },
        fault=fault,
        notes=model_notes(config, files, tokenizer),
    )


def seeded(sampling: Sampling, seed: int) -> Sampling:
    """Sampling with a seed: its own or else the run's."""
    return sampling if sampling.seed is not None else replace(sampling, seed=seed)


def make_task(task: TaskConfig) -> Task:
    """A task with its options; its prompts are still to be made."""
    source: Task = registry.lookup("task", task.name)(build_options("task", task.name, task.options))
    return source


def make_prompts(task: TaskConfig, source: Task, tokenizer: Tokenizer, seed: int, max_context: int) -> list[Prompt]:
    """The prompts of a task that fit the model's context, in order; the others join the task's exclusions.

    Raises TaskError if none fits, or if one begins with two BOS tokens.
    """
    made = source.prompts(tokenizer, limit=task.limit, seed=seed)
    reasons = {prompt.id: over_context(task, prompt, max_context) for prompt in made}
    source.excluded += [Exclusion(id=name, reason=reason) for name, reason in reasons.items() if reason]
    prompts = [prompt for prompt in made if not reasons[prompt.id]]
    checked(prompts, task=task.name, excluded=source.excluded)
    for prompt in prompts:
        if tokenizer.bos_id is not None and prompt.ids[:2] == (tokenizer.bos_id, tokenizer.bos_id):
            raise TaskError(
                f"task {task.name!r}, prompt {prompt.id!r} begins with two BOS tokens (id {tokenizer.bos_id}), which "
                "changes every answer: the chat template writes one itself, so take it out of the text, or use "
                "`format: raw`"
            )
    return prompts


def over_context(task: TaskConfig, prompt: Prompt, max_context: int) -> str | None:
    """Why the model's context has no room for a prompt and its answer, or None; such a prompt is not asked."""
    total = len(prompt.ids) + task.max_tokens
    if total <= max_context:
        return None
    return (
        f"{len(prompt.ids)} prompt tokens + max_tokens {task.max_tokens} = {total} exceed the model's context of "
        f"{max_context}, so it is not asked"
    )


def exclusions(name: str, source: Task, asked: int) -> list[str]:
    """A line on the rows of a task that are not asked, with the first one's reason; none where all are."""
    if not source.excluded:
        return []
    first = source.excluded[0]
    count = f"task {name}: {len(source.excluded)} of {len(source.excluded) + asked} rows excluded"
    return [f"{count}; the first: {first.id}: {first.reason}"]


def check_weights(files: ModelFiles) -> None:
    """Raises ModelError unless the weights are those of the architecture; before a run writes or moves anything."""
    with WeightReader(files.path) as reader:
        reader.check_complete(files.architecture)


def load(files: ModelFiles, identity: Identity, exactness: Exactness) -> tuple[Decoder, dict[str, int]]:
    """The decoder and the row tiles chosen by the exactness probe.

    Raises ModelError if the weights are not those whose hash is recorded, before they were read or after.
    """
    files.check_unchanged()
    with WeightReader(files.path) as reader:
        reader.check_complete(files.architecture)
        loaded = load_decoder(
            files.architecture,
            reader,
            device=torch.device(identity.device),
            dtype=getattr(torch, identity.dtype),
            exactness=exactness,
        )
    files.check_unchanged()
    return loaded


def cell_setup(cell: Cell, config: RunConfig) -> CellSetup:
    """How the engine carries out a cell."""
    directory = config.engine.disk_directory
    return CellSetup(
        arm=cell.config.arm,
        compressor=make_compressor(cell),
        draft_length=cell.config.draft_length or 0,
        seed=config.seed,
        full_cache=cell.config.full_cache,
        disk_directory=Path(directory) if directory is not None else None,
    )


def make_compressor(cell: Cell) -> Compressor[Any] | None:
    """A fresh compressor for a cell; None for `full`."""
    if cell.method is None:
        return None
    name = cell.method.compressor
    given = () if cell.calibration is None else (cell.calibration,)
    compressor: Compressor[Any] = registry.lookup("compressor", name)(
        build_options("compressor", name, cell.method.options), *given
    )
    return compressor
