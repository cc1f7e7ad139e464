"""Scored metrics as `--fail-on` looks at them: `TASK.METRIC`, by group of requests a numerator and a denominator."""

from __future__ import annotations

from vcbench.errors import UsageError
from vcbench.metrics.interval import Kind, right_operator
from vcbench.records.reader import CellInfo
from vcbench.registry import suggest
from vcbench.scoring.scores import Scores
from vcbench.scoring.values import Pair


def score_samples(scores: Scores, cell: CellInfo, name: str, operator: str) -> tuple[Kind, dict[str, Pair]]:
    """The kind of `TASK.METRIC` and its samples in a cell, none where the cell is not of that task.

    Raises UsageError for a task or metric that the run does not have, and for an operator that would fail it for being
    better.
    """
    task_name, _, metric_name = name.rpartition(".")
    task = next((task for task in scores.tasks if task.task == task_name), None)
    if task is None:
        known = ", ".join(task.task for task in scores.tasks)
        raise UsageError(f"--fail-on: the run has no task {task_name!r}; it has {known}")
    # The task's own section is the first, and wins where a plug-in names a metric like one that all tasks have.
    metrics = {metric.name: (section, metric) for section in reversed(task.sections) for metric in section.metrics}
    if metric_name not in metrics:
        hint = suggest(metric_name, list(metrics))
        raise UsageError(f"--fail-on: {task_name} has no metric {metric_name!r}; {hint}")
    section, metric = metrics[metric_name]
    if instead := right_operator(operator, metric.better):
        raise UsageError(f"--fail-on: {name}{operator} would fail a run for being better; write {name}{instead}")
    if cell.id not in section.outcomes:
        return metric.kind, {}
    return metric.kind, task.samples(section, metric, cell)
