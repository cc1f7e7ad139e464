"""How many prompts of what length a task will have, and what must be fetched for it, before its data is here.

Counted where that is possible: local files, embedded samples and generated text go through the task itself, with a
rough tokenizer while the model's is missing. Data that is not here has the figures of `KNOWN`, with their sources.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vcbench import registry
from vcbench.config.options import build_options
from vcbench.config.paths import user_path
from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.errors import CalibrationError
from vcbench.models.rough import RoughTokenizer
from vcbench.models.store import ModelFiles
from vcbench.runners.setup import ContextTokenizer, exclusions, make_prompts
from vcbench.tasks.base import Task
from vcbench.tasks.hub import hub_command, is_cached

UNKNOWN_TOKENS = 4096
"""Length of a prompt of which nothing is known."""
GSM8K_EXAMPLE_TOKENS = 130
"""A worked example or a question with its heading: the mean of the embedded sample, which is like the data set's."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """A benchmark's data. tokens: a usual prompt's length. source: where the figures are from."""

    prompts: int
    tokens: int
    source: str
    fetch: str = ""


_LONGGENBENCH = "https://raw.githubusercontent.com/mozhu621/LongGenBench/main/Dataset/"
KNOWN: Mapping[str, DataSet] = {
    "swebench-lite": DataSet(
        300, 12_000, "300 instances, 12,000 tokens each assumed (4k to 14k in three repositories)"
    ),
    "complexfuncbench": DataSet(3260, 8_000, "1,000 conversations of 3.26 steps, 8,000 tokens assumed"),
    "gsm8k-long": DataSet(1319, 0, "1,319 questions (arXiv 2110.14168), 130 tokens an example"),
    "longform": DataSet(
        400,
        650,
        "400 plans (arXiv 2409.02076), 650 tokens each (eight have 460 to 810)",
        f"curl --fail --location --create-dirs --output {{path}} {_LONGGENBENCH}{{name}}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The prompts of one task. basis: `counted`, `roughly counted`, or what the figures rest on.

    absent: what must be here before the task can run; a command to type, or a file in words. notes: what is left out.
    """

    lengths: Sequence[int]
    basis: str
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def expected_prompts(
    config: RunConfig, task: TaskConfig, tokenizer: ContextTokenizer | None, max_context: int
) -> Expected:
    """What the task will ask; no network is used. Raises TaskError where data that is here cannot be asked."""
    options = build_options("task", task.name, task.options)
    absent = absent_data(task, options)
    if absent:
        return _from_figures(task, options, absent)
    source: Task = registry.lookup("task", task.name)(options)
    prompts = make_prompts(task, source, tokenizer or RoughTokenizer(), config.seed, max_context)
    return Expected(
        lengths=[len(prompt.ids) for prompt in prompts],
        basis="counted" if tokenizer else "roughly counted",
        notes=tuple(exclusions(task.name, source, len(prompts))),
    )


def absent_data(task: TaskConfig, options: Any) -> tuple[str, ...]:
    """What the task's options name and is not on this machine: commands that bring it, or files."""
    needed = []
    dataset, revision = getattr(options, "dataset", ""), getattr(options, "revision", "") or None
    if dataset and importlib.util.find_spec("datasets") is None:
        needed.append("pip install 'vcbench[tasks]'")
    if dataset and not is_cached(dataset, revision):
        needed.append(hub_command(dataset, revision))
    path = getattr(options, "path", "")
    known = KNOWN.get(task.name)
    # A task with data of its own may have a file that is still to be fetched; a file of one's own must be there.
    if path and known is not None and not user_path(path).exists():
        fetch = known.fetch if getattr(options, "benchmark", "longgenbench") == "longgenbench" else ""
        place = user_path(path)
        command = fetch.format(path=shlex.quote(str(place)), name=shlex.quote(place.name))
        needed.append(command or f"the file {path}, which task {task.name} names as its `path`")
    return tuple(needed)


def _from_figures(task: TaskConfig, options: Any, absent: tuple[str, ...]) -> Expected:
    known = KNOWN.get(task.name)
    if known is None:
        return Expected(
            lengths=[UNKNOWN_TOKENS] * (task.limit or 1),
            basis=f"nothing is known of them, {UNKNOWN_TOKENS} tokens each assumed",
            absent=absent,
        )
    count, tokens = known.prompts, known.tokens
    if task.name == "gsm8k-long":
        count = -(-count // options.questions)
        shots = 8 if options.shots is None else options.shots
        tokens = options.context_tokens or (shots + options.questions) * GSM8K_EXAMPLE_TOKENS
    longest = getattr(options, "max_context_tokens", None)
    tokens = tokens if longest is None else min(tokens, longest)
    return Expected(
        lengths=[tokens] * min(count, task.limit or count), basis=f"not here: {known.source}", absent=absent
    )


def absent_calibrations(config: RunConfig, files: ModelFiles | None) -> tuple[list[str], dict[str, Any]]:
    """The commands that fit what the methods still need, and the calibrations that are here, by the methods' names."""
    from vcbench.backends.bundled.calibrations import needed
    from vcbench.calibration.store import calibrate_command, find_calibration

    commands, found = [], {}
    for name in config.used_methods:
        method = config.methods[name]
        need = needed(method)
        if need is None:
            continue
        command = calibrate_command(method.compressor, need, config.model.id)
        if files is None:
            commands.append(command)
            continue
        try:
            found[name] = find_calibration(
                method.compressor, need, model_id=files.id, weights_sha256=files.weights_sha256
            )
        except CalibrationError:
            commands.append(command)
    return list(dict.fromkeys(commands)), found
