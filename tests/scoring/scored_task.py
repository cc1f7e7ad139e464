"""A task whose metrics can be made to say anything, and runs of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.records.samples import FULL, LOSSY, VERI, Sample
from vcbench import registry
from vcbench.tasks.base import Answer, Metric, Prompt, PromptTokenizer, Question, Ratio, Task, TaskOptions, Value

TASK = "scored-by-test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TaskOptions):
    """A tuple, as options have them."""

    words: tuple[str, ...] = ("fine",)


class ScoredTask(Task):
    """Right if the text is the target; `calls`: words of the target that are in the text."""

    Options = Options
    metrics = (
        Metric(name="right", summary="text equals target", headline=True),
        Metric(name="calls", summary="words found", kind="ratio"),
        Metric(name="length", summary="characters", kind="mean", better="neither"),
        Metric(name="same", summary="as full KV's"),
    )

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        return []

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        if "explode" in answer.text:
            raise ZeroDivisionError("a metric with a fault")
        words = question.meta["words"]
        return {
            "right": answer.text == question.target,
            "calls": Ratio(sum(word in answer.text for word in words), len(words)),
            "length": float(len(answer.text)),
            "same": None if reference is None else answer.text == reference.text,
        }

    def export(self, cell: str, answers: Sequence[tuple[Question, Answer]], directory: Path) -> list[Path]:
        path = directory / "answers.txt"
        path.write_text("\n".join(f"{question.id}: {answer.text}" for question, answer in answers))
        return [path]


@contextmanager
def registered() -> Iterator[None]:
    registry.names("task")
    registry._entries["task", TASK] = ScoredTask
    try:
        yield
    finally:
        del registry._entries["task", TASK]


def sample(texts: Mapping[str, Sequence[str]], meta: Sequence[Mapping[str, Any]] = ()) -> Sample:
    """A run of the task: by arm, the text of each answer; the target of every prompt is "a b"."""
    cells = {cell["arm"]: cell | {"task": TASK} for cell in (FULL, LOSSY, VERI) if cell["arm"] in texts}
    count = len(texts["full"])
    names = tuple(f"q{number}" for number in range(count))
    made = Sample(cells=list(cells.values()), names=names)
    made.others = []
    made.prompts = [
        replace(line, task=TASK, target="a b", meta={"words": ["a", "b"], **(meta[i] if meta else {})})
        for i, line in enumerate(made.prompts)
    ]
    arms = {cell["id"]: arm for arm, cell in cells.items()}
    made.requests = [
        replace(line, task=TASK, text=texts[arms[line.cell]][names.index(line.request)]) for line in made.requests
    ]
    return made


def write(made: Sample, path: Path) -> Path:
    """The run on disk, its configuration naming the task with its options."""
    made.write(path)
    config = path / "config.yaml"
    config.write_text(f"{config.read_text()}tasks:\n- name: {TASK}\n  max_tokens: 8\n  words: [fine]\n")
    return path
