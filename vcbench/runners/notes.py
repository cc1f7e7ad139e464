"""What a user should know of a model before its answers are read, and sampling that is the model's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.errors import ConfigError, Problem

if TYPE_CHECKING:
    from vcbench.models.store import ModelFiles
    from vcbench.models.tokenizer import Tokenizer


def resolved_sampling(config: RunConfig, files: ModelFiles) -> RunConfig:
    """The configuration with `sampling: model` written out, so that cell ids, records and replays have its values.

    Raises ModelError where the model asks for what this decoder does not have, ConfigError where a task contradicts it.
    """
    return replace(config, tasks=tuple(_resolved(config, index, files) for index in range(len(config.tasks))))


def _resolved(config: RunConfig, index: int, files: ModelFiles) -> TaskConfig:
    task = config.tasks[index]
    if not task.sampling.model:
        return task
    sampling = replace(files.generation.sampling(), seed=task.sampling.seed)
    if sampling.min_tokens > task.max_tokens:
        where = config.places.get(f"tasks.{index}", f"tasks.{index}")
        message = f"the model's min_new_tokens {sampling.min_tokens} is above max_tokens {task.max_tokens}"
        raise ConfigError([Problem(where=where, message=message, suggestion="raise max_tokens")])
    return replace(task, sampling=sampling)


def model_notes(config: RunConfig, files: ModelFiles, tokenizer: Tokenizer) -> tuple[str, ...]:
    """What is said in the run, its dry run and its records, each once: the files', the tokenizer's, and of decoding."""
    found = [*files.notes, *tokenizer.notes]
    if files.stop_ids and tokenizer.eos_id is not None and tokenizer.eos_id not in files.stop_ids:
        ids = ", ".join(map(str, sorted(files.stop_ids)))
        found.append(f"stop ids are {ids}; the tokenizer's eos_token, id {tokenizer.eos_id}, does not stop an answer")
    for task in config.tasks:
        found += [f"{note} (task {task.name})" for note in files.generation.notes(task.sampling)]
    return tuple(dict.fromkeys(found))
