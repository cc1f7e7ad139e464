"""From a configuration to what a run needs before it begins: the model found, a backend, the plan, the prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from vcbench import registry
from vcbench.backends.base import Backend, MakeBackend
from vcbench.backends.bundled.backend import Bundled
from vcbench.backends.cells import Plan
from vcbench.config.options import build_options
from vcbench.config.sampling import Sampling
from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.engine.types import Request
from vcbench.errors import ConfigError, Problem, TaskError
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.models.tokenizer import Tokenizer
from vcbench.models.weights import WeightReader
from vcbench.runners.notes import model_notes, resolved_sampling
from vcbench.runners.plan import build_plan
from vcbench.tasks.base import Exclusion, Prompt, PromptTokenizer, Task, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """A run before its first forward pass."""

    config: RunConfig
    files: ModelFiles
    backend: Backend
    plan: Plan
    tokenizer: Tokenizer
    sources: Mapping[str, Task]
    prompts: Mapping[str, list[Prompt]]
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


def prepare(config: RunConfig, backend: MakeBackend = Bundled) -> Workbench:
    """Finds the model, plans the cells and makes the prompts. Raises before anything is loaded or written."""
    files = resolve_model(config.model)
    check_weights(files)
    config = resolved_sampling(config, files)
    made = backend(config, files)
    if config.engine.refill and not made.capabilities().refill:
        where = config.places.get("engine", "engine.refill")
        message = f"backend {made.name} does not take requests in one by one"
        raise ConfigError([Problem(where=where, message=message, suggestion="remove engine.refill")])
    plan = build_plan(
        config,
        architecture=files.architecture,
        identity=made.identity(),
        calibrations=made.calibrations(),
        arms=made.capabilities().arms,
    )
    tokenizer = Tokenizer.from_files(files)
    sources = {task.name: make_task(task) for task in config.tasks}
    return Workbench(
        config=config,
        files=files,
        backend=made,
        plan=plan,
        tokenizer=tokenizer,
        sources=sources,
        prompts={
            task.name: make_prompts(task, sources[task.name], tokenizer, config.seed, files.architecture.max_context)
            for task in config.tasks
        },
        notes=model_notes(config, files, tokenizer),
    )


def seeded(sampling: Sampling, seed: int) -> Sampling:
    """Sampling with a seed: its own or else the run's."""
    return sampling if sampling.seed is not None else replace(sampling, seed=seed)


def make_task(task: TaskConfig) -> Task:
    """A task with its options; its prompts are still to be made."""
    source: Task = registry.lookup("task", task.name)(build_options("task", task.name, task.options))
    return source


class ContextTokenizer(PromptTokenizer, Protocol):
    """What making prompts needs of a tokenizer."""

    @property
    def bos_id(self) -> int | None:
        """The id that opens a text, if there is one."""


def make_prompts(
    task: TaskConfig, source: Task, tokenizer: ContextTokenizer, seed: int, max_context: int
) -> list[Prompt]:
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
