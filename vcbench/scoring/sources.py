"""Where metrics come from: a task, the texts against full KV's, each text alone, the teacher-forced divergence.

A source gives, for one cell, each metric's outcome by request. One that cannot say anything in this installation or of
this run says why, and that is shown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from vcbench import registry
from vcbench.config.schema import TaskConfig
from vcbench.errors import VcbenchError
from vcbench.records.reader import CellInfo, Run
from vcbench.scoring.answers import answer, answered, question
from vcbench.scoring.values import Failure, Outcome, checked
from vcbench.tasks.base import Answer, Metric, Question, Task

Outcomes = dict[str, dict[str, Outcome]]
"""By metric, then by request."""

OWN_KEYS = frozenset(TaskConfig.__dataclass_fields__) - {"options"}


class Source(ABC):
    """Some metrics of one task of a run. `paired`: the full-KV arm has them too, so that arms can be compared."""

    name: str
    title: str
    metrics: tuple[Metric, ...] = ()
    paired = True
    missing: str = ""
    """Why there is nothing, or not everything; empty if there is."""

    @abstractmethod
    def outcomes(self, run: Run, cell: CellInfo, task: str) -> Outcomes:
        """What the metrics say of each of the cell's answers."""


class TaskSource(Source):
    """The metrics that the task itself has."""

    name = "task"
    title = "the task's own metrics"

    def __init__(self, run: Run, task: str) -> None:
        self.task: Task | None = None
        try:
            self.task = task_of(run, task)
        except (VcbenchError, TypeError, ValueError) as error:
            self.missing = f"the metrics of task {task} are not available: {error}"
        else:
            self.metrics = tuple(self.task.metrics)

    def outcomes(self, run: Run, cell: CellInfo, task: str) -> Outcomes:
        found: Outcomes = {metric.name: {} for metric in self.metrics}
        if self.task is None or not self.metrics:
            return found
        baseline = run.baseline(task)
        full = answered(run, baseline, task) if baseline is not None and cell.arm != "full" else {}
        for request, line in answered(run, cell, task).items():
            reference = answer(run, full[request]) if request in full else None
            asked = question(run.prompts[task, request])
            for metric, outcome in score_answer(self.task, asked, answer(run, line), reference).items():
                found[metric][request] = outcome
        return found


def score_answer(task: Task, asked: Question, given: Answer, reference: Answer | None) -> dict[str, Outcome]:
    """Every metric of the task; where the task raises, each of them failed with the reason."""
    try:
        values: Mapping[str, Any] = task.score(asked, given, reference)
        unknown = sorted(set(values) - {metric.name for metric in task.metrics})
        if unknown:
            raise TypeError(f"the task gave metrics that it does not declare: {', '.join(unknown)}")
    except Exception as error:  # noqa: BLE001 -- whatever a metric does, no answer may be lost by it
        reason = str(error) if isinstance(error, VcbenchError) else f"{type(error).__name__}: {error}"
        return {metric.name: Failure(reason) for metric in task.metrics}
    return {
        metric.name: checked(metric, values[metric.name])
        if metric.name in values
        else Failure("the task gave no value")
        for metric in task.metrics
    }


def task_of(run: Run, name: str) -> Task:
    """The task with the options that the run had. Raises UsageError where no such task is registered any more."""
    entries: Sequence[Any] = run.config.get("tasks") or ()
    entry = next((each for each in entries if isinstance(each, Mapping) and each.get("name") == name), {})
    cls = registry.lookup("task", name)
    task: Task = cls(cls.Options(**{key: _frozen(value) for key, value in entry.items() if key not in OWN_KEYS}))
    return task


def _frozen(value: Any) -> Any:
    """Lists as the tuples that options are declared with."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
