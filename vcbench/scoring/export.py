"""A run's answers in the formats of the benchmarks themselves, written by each task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from vcbench.errors import UsageError
from vcbench.records.files import explained
from vcbench.records.reader import Run
from vcbench.scoring.answers import answer, answered, question
from vcbench.scoring.sources import task_of

ELSEWHERE = "give --export a directory that can be written"


def export(run: Run, directory: Path, tasks: Sequence[str]) -> list[Path]:
    """One call of `Task.export` for each cell of these tasks; each has a directory of its own, named by task and label.

    Raises UsageError where none of the tasks has a format of its own.
    """
    with explained(directory, "create", ELSEWHERE):
        directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name in tasks:
        task = task_of(run, name)
        for cell in (cell for cell in run.cells if cell.answers(name)):
            place = directory / name / re.sub(r"[^A-Za-z0-9._=-]+", "-", cell.label)
            pairs = [
                (question(run.prompts[name, request]), answer(run, line))
                for request, line in answered(run, cell, name).items()
            ]
            with explained(place, "write into", ELSEWHERE):
                place.mkdir(parents=True, exist_ok=True)
                written += task.export(cell.label, pairs, place)
                for made in (place, place.parent):
                    if not any(made.iterdir()):
                        made.rmdir()
    if not written:
        raise UsageError(f"no task of {run.name} ({', '.join(tasks)}) has a format to export")
    return written
