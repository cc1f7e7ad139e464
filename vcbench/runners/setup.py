"""From a configuration to what a run needs before it begins: the model found, a backend, the plan, the prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vcbench import registry
from vcbench.backends.base import Backend, MakeBackend
from vcbench.backends.bundled.backend import Bundled
from vcbench.backends.cells import Plan
from vcbench.config.options import build_options
from vcbench.config.sampling import Sampling
from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.engine.types import Request
from vcbench.errors import TaskError
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.models.tokenizer import Tokenizer
from vcbench.runners.plan import build_plan
from vcbench.tasks.base import Prompt, Task


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
    made = backend(config, files)
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
        prompts={task.name: make_prompts(task, sources[task.name], tokenizer, config.seed) for task in config.tasks},
    )


def seeded(sampling: Sampling, seed: int) -> Sampling:
    """Sampling with a seed: its own or else the run's."""
    return sampling if sampling.seed is not None else replace(sampling, seed=seed)


def make_task(task: TaskConfig) -> Task:
    """A task with its options; its prompts are still to be made."""
    source: Task = registry.lookup("task", task.name)(build_options("task", task.name, task.options))
    return source


def make_prompts(task: TaskConfig, source: Task, tokenizer: Tokenizer, seed: int) -> list[Prompt]:
    """The prompts of a task, in order. Raises TaskError if one begins with two BOS tokens."""
    prompts = source.prompts(tokenizer, limit=task.limit, seed=seed)
    for prompt in prompts:
        if tokenizer.bos_id is not None and prompt.ids[:2] == (tokenizer.bos_id, tokenizer.bos_id):
            raise TaskError(
                f"task {task.name!r}, prompt {prompt.id!r} begins with two BOS tokens (id {tokenizer.bos_id}), which "
                "changes every answer: the chat template writes one itself, so take it out of the text, or use "
                "`format: raw`"
            )
    return prompts
