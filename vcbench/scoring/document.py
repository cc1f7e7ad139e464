"""`scores.json`: a run's scores beside its records, written whole, and never trusted once either has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vcbench.errors import RecordError
from vcbench.records.files import explained, json_bytes, read_json, replace_file
from vcbench.records.reader import Run
from vcbench.scoring.answers import answered, groups
from vcbench.scoring.curves import curves_of
from vcbench.scoring.identity import identity_of, package_versions
from vcbench.scoring.scores import Figure, Scores, Section, TaskScores, score_task, sources_of
from vcbench.scoring.texts import common_sources
from vcbench.scoring.values import from_json, to_json
from vcbench.tasks.base import Metric

SCORES = "scores.json"
SCHEMA_VERSION = 1


def score_run(run: Run, *, own_only: bool = False) -> Scores:
    """Every metric of every answer, computed anew; `own_only`: those that the tasks themselves bring alone."""
    common = [] if own_only else common_sources()
    return Scores(
        run=run.name,
        records_sha256=run.sha256,
        code_sha256=identity_of(run),
        tasks=[score_task(run, task, [*sources_of(run, task), *common]) for task in run.tasks],
    )


def scored(run: Run, *, own_only: bool = False) -> Scores:
    """The scores in the run's directory if they are of these records and this code, else computed anew."""
    return read_scores(run) or score_run(run, own_only=own_only)


def score_and_write(run: Run) -> Scores:
    """Scores a run and writes `scores.json`."""
    scores = score_run(run)
    write_scores(run, scores)
    return scores


def write_scores(run: Run, scores: Scores) -> Path:
    """Writes `scores.json` whole. Raises RecordError where the directory cannot be written."""
    path = run.path / SCORES
    with explained(path, "write", "copy the run to a place that can be written, and score it there"):
        replace_file(path, json_bytes(as_dict(run, scores)))
    return path


def read_scores(run: Run) -> Scores | None:
    """The stored scores; None where there are none, they are damaged, or records or code have changed since."""
    path = run.path / SCORES
    if not path.is_file():
        return None
    try:
        document = read_json(path)
        made_from = (document.get("schema"), document.get("records_sha256"), document.get("code_sha256"))
        if made_from != (SCHEMA_VERSION, run.sha256, identity_of(run)):
            return None
        return Scores(
            run=run.name,
            records_sha256=run.sha256,
            code_sha256=document["code_sha256"],
            tasks=[_task(run, name, entry) for name, entry in document["tasks"].items()],
        )
    except (RecordError, KeyError, TypeError, ValueError, AttributeError):
        return None


def as_dict(run: Run, scores: Scores) -> dict[str, Any]:
    """Plain data: figures, the values of every request, and the curves by position."""
    return {
        "schema": SCHEMA_VERSION,
        "run": scores.run,
        "complete": run.complete,
        "records_sha256": scores.records_sha256,
        "code_sha256": scores.code_sha256,
        "versions": package_versions(),
        "errors": scores.errors(),
        "tasks": {task.task: _task_dict(run, task) for task in scores.tasks},
    }


def headline(scores: Scores) -> dict[tuple[str, str], dict[str, Figure]]:
    """The headline metrics by task and cell id."""
    return {
        (task.task, cell.id): {
            metric.name: task.figure(section, metric, cell)
            for section in task.sections
            for metric in section.metrics
            if metric.headline
        }
        for task in scores.tasks
        for cell in task.cells
    }


def figure_dict(figure: Figure) -> dict[str, Any]:
    """A figure without its metric, which is described once."""
    found = asdict(figure)
    found.pop("metric")
    return found


def _task_dict(run: Run, task: TaskScores) -> dict[str, Any]:
    return {
        "excluded": list(task.excluded),
        "groups": dict(task.groups),
        "failed": dict(task.failed),
        "cells": {cell.id: {"label": cell.label, "arm": cell.arm} for cell in task.cells},
        "curves": {cell.id: asdict(curves_of(run, cell, task.task)) for cell in task.cells if cell.arm != "full"},
        "sections": [
            {
                "source": section.source,
                "title": section.title,
                "paired": section.paired,
                "missing": section.missing,
                "metrics": [asdict(metric) for metric in section.metrics],
                "cells": {
                    cell.id: {
                        metric.name: {
                            **figure_dict(task.figure(section, metric, cell)),
                            "values": {
                                request: to_json(value)
                                for request, value in section.outcomes[cell.id][metric.name].items()
                            },
                        }
                        for metric in section.metrics
                    }
                    for cell in task.cells
                },
            }
            for section in task.sections
        ],
    }


def _task(run: Run, name: str, entry: Mapping[str, Any]) -> TaskScores:
    cells = tuple(cell for cell in run.cells if cell.answers(name))
    wanted = {cell.id: run.asked(cell, name) for cell in cells}
    return TaskScores(
        task=name,
        cells=cells,
        groups=groups(run, name),
        asked=wanted,
        failed={cell.id: len(wanted[cell.id]) - len(answered(run, cell, name)) for cell in cells},
        excluded=entry["excluded"],
        sections=[_section(section) for section in entry["sections"]],
    )


def _section(entry: Mapping[str, Any]) -> Section:
    return Section(
        source=entry["source"],
        title=entry["title"],
        metrics=tuple(Metric(**metric) for metric in entry["metrics"]),
        paired=entry["paired"],
        missing=entry["missing"],
        outcomes={
            cell: {
                name: {request: from_json(value) for request, value in figure["values"].items()}
                for name, figure in figures.items()
            }
            for cell, figures in entry["cells"].items()
        },
    )
