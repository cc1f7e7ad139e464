"""The runs under a directory, as `vcbench runs` lists them; a damaged one is listed with its damage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vcbench.errors import RecordError
from vcbench.records.files import PROVENANCE
from vcbench.records.reader import Run, load_run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """One run in short. `state`: `complete`, `unfinished`, or what is wrong with it."""

    name: str
    started: str
    model: str
    cells: int
    answers: int
    expected: int
    state: str


def list_runs(directory: Path) -> list[RunEntry]:
    """The runs in the directory, by start time, the newest last."""
    entries = [_entry(path.parent) for path in directory.glob(f"*/{PROVENANCE}")]
    return sorted(entries, key=lambda entry: (entry.started, entry.name))


def _entry(path: Path) -> RunEntry:
    try:
        run = load_run(path)
    except RecordError as error:
        return RunEntry(name=path.name, started="", model="", cells=0, answers=0, expected=0, state=f"damaged: {error}")
    model = run.provenance.get("model")
    return RunEntry(
        name=path.name,
        started=str(run.provenance.get("started", "")),
        model=str(model.get("id", "")) if isinstance(model, dict) else "",
        cells=len(run.cells),
        answers=len(run.requests),
        expected=_expected(run),
        state="complete" if run.complete else "unfinished",
    )


def _expected(run: Run) -> int:
    """Answers that the prompts seen so far call for."""
    return sum(len(run.asked(cell, task)) for task in run.tasks for cell in run.cells if cell.answers(task))
