"""Long outputs: LongGenBench, LongBench-Write and LongProc."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml

from vcbench.errors import TaskError, VcbenchError
from vcbench.registry import register
from vcbench.tasks.base import (
    Answer,
    Prompt,
    PromptTokenizer,
    Question,
    Task,
    TaskOptions,
    Value,
    as_needed,
    checked,
    excluding,
)
from vcbench.tasks.budget import over
from vcbench.tasks.longform_sets.item import DataSet, Item
from vcbench.tasks.longform_sets.longbench_write import LongBenchWrite
from vcbench.tasks.longform_sets.longgenbench import LongGenBench
from vcbench.tasks.longform_sets.longproc import PROCEDURES, LongProc
from vcbench.tasks.rows import Row
from vcbench.tasks.source import SplitOptions, source_rows

TEMPLATE_FILE = "prompts.yaml"
TEMPLATE_KEY = "USER_PROMPT"
LENGTHS = ("0.5k", "2k", "8k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SplitOptions):
    """Which benchmark, and where its rows are."""

    benchmark: Literal["longgenbench", "longbench-write", "longproc"] = field(
        default="longgenbench", metadata={"doc": "Which benchmark the rows are of, and so how answers are scored."}
    )
    subset: str = field(
        default="",
        metadata={"doc": "LongProc: `PROCEDURE_LENGTH`, such as `countdown_0.5k`, which is also the default."},
    )
    template: str = field(
        default="",
        metadata={"doc": "LongProc: the prompt template of rows without one; `prompts.yaml` beside them by default."},
    )
    max_context_tokens: int | None = field(
        default=None, metadata={"doc": "Leave out prompts longer than this; they are counted.", "minimum": 1}
    )

    def __post_init__(self) -> None:
        SplitOptions.__post_init__(self)
        for name in ("subset", "template"):
            if getattr(self, name) and self.benchmark != "longproc":
                raise ValueError(f"{name} belongs to benchmark longproc")
        procedure, _, length = self.subset.rpartition("_")
        if self.subset and (procedure not in PROCEDURES or length not in LENGTHS):
            raise ValueError(
                f"subset {self.subset!r} is none of {', '.join(PROCEDURES)} with one of _{', _'.join(LENGTHS)}"
            )
        if self.subset and length != LENGTHS[0] and not self.path and not self.dataset:
            raise ValueError(f"subset {self.subset!r} needs path or dataset: the embedded sample has {LENGTHS[0]} only")

    @property
    def procedure(self) -> str | None:
        """LongProc's procedure; None where the rows of a local file show it."""
        if self.subset or not self.path:
            return (self.subset or "countdown_0.5k").rpartition("_")[0]
        return None


@register("task", "longform")
class LongformTask(Task):
    """One prompt a row, in the rows' order; answers are long, so give the task enough `max_tokens`."""

    Options = Options
    summary = "long outputs: LongGenBench (default), LongBench-Write, LongProc; without data a sample of vcbench's own"

    def __init__(self, options: TaskOptions) -> None:
        super().__init__(options)
        assert isinstance(options, Options)
        self.metrics = SCORED_AS[options.benchmark].metrics

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The rows as prompts, as many as `limit` asks for; those that are malformed are excluded."""
        options = self.options
        assert isinstance(options, Options)
        benchmark = _benchmark(options)
        self.excluded = []
        made: list[Prompt] = []
        for row in as_needed(source_rows(options, _sample(options), config=_config(options)), made, limit):
            name = f"{options.benchmark}-{row.number}"
            with excluding(self.excluded, name):
                prompt = _prompt(name, row, benchmark.item(row), tokenizer, options)
                if (exclusion := over(name, len(prompt.ids), options.max_context_tokens)) is not None:
                    self.excluded.append(exclusion)
                else:
                    made.append(prompt)
        return checked(made, task="longform", excluded=self.excluded)

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """The metrics of the prompt's benchmark."""
        benchmark = SCORED_AS[question.meta["benchmark"]]
        return benchmark.score(question.target, answer.text, reference.text if reference is not None else None)


SCORED_AS: dict[str, DataSet] = {
    "longgenbench": LongGenBench(),
    "longbench-write": LongBenchWrite(),
    "longproc": LongProc(),
}


def _benchmark(options: Options) -> DataSet:
    if options.benchmark != "longproc":
        return SCORED_AS[options.benchmark]
    directory = Path(options.path).parent if options.path else None
    return LongProc(procedure=options.procedure, template=_template(options, directory), directory=directory)


def _template(options: Options, directory: Path | None) -> str | None:
    """The template's text; None if none is named and none lies beside the rows."""
    beside = directory / TEMPLATE_FILE if directory is not None else None
    path = Path(options.template) if options.template else beside
    if path is None or (path == beside and not path.is_file()):
        return None
    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))[TEMPLATE_KEY]
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise TaskError(f"{path} is not a YAML file with a text `{TEMPLATE_KEY}`: {reason}") from error
    if not isinstance(text, str):
        raise TaskError(f"{path}: `{TEMPLATE_KEY}` must be a text")
    return text


def _sample(options: Options) -> str:
    name = options.benchmark.replace("-", "_")
    return f"{name}_{options.procedure}.jsonl" if options.benchmark == "longproc" else f"{name}.jsonl"


def _config(options: Options) -> str | None:
    return options.subset or "countdown_0.5k" if options.benchmark == "longproc" else None


def _prompt(name: str, row: Row, item: Item, tokenizer: PromptTokenizer, options: Options) -> Prompt:
    try:
        ids = tokenizer.chat([{"role": "user", "content": item.content}])
    except (VcbenchError, ValueError) as error:
        row.refuse(f"the prompt does not fit the model's chat template: {error}")
    return Prompt(
        id=name,
        ids=tuple(ids),
        document_sha256=hashlib.sha256(row.data).hexdigest(),
        target=dict(item.target),
        meta={"benchmark": options.benchmark, **options.origin, "row": row.number, **item.meta},
    )
