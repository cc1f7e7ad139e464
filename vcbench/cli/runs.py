"""Finding a run from what was typed (a directory, or a name under `runs/`), and `vcbench runs`, which lists them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from vcbench.cli.output import begin, beginning, next_command, notes, results, table, write_json
from vcbench.errors import UsageError

RUNS = Path("runs")
CONFIG_SUFFIXES = (".yaml", ".yml")


def runs(
    directory: Annotated[Path, typer.Option("--dir", help="Where runs lie.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List the runs that are here: the newest last, damaged ones with their damage."""
    from vcbench.records.printable import printable
    from vcbench.report.runs import list_runs

    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is no directory; --dir takes the directory where runs lie")
    try:
        entries = list_runs(directory)
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {(error.strerror or str(error)).lower()}") from error
    rows = [
        {
            "run": entry.name,
            "started": entry.started or "-",
            "model": entry.model or "-",
            "cells": str(entry.cells),
            "answers": f"{entry.answers} of {entry.expected}",
            "state": entry.state,
        }
        for entry in entries
    ]
    if as_json:
        write_json(rows)
        return
    if not rows:
        notes().print(f"no runs under {directory}", markup=False)
        begin()
        return
    shown = [[printable(value) for value in row.values()] for row in rows]
    results().print(table("", list(rows[0]), shown, wrap=(0, 1, 2, 5)))
    readable = [entry.name for entry in entries if not entry.state.startswith("damaged")]
    if readable:
        next_command("vcbench", "compare", directory / readable[-1])
    else:
        begin()


def find_run(text: str) -> Path:
    """The run's directory. Raises UsageError that says what the word is instead, or the nearest name."""
    for path in (Path(text), RUNS / text):
        if path.is_dir():
            return path
    if Path(text).is_file():
        raise UsageError(_a_file(text))
    from vcbench.registry import suggest

    known = names_of_runs()
    hint = suggest(text, known) if known else f"there are none yet; begin with: {shlex.join(beginning())}"
    raise UsageError(f"no run {text!r}, neither as a directory nor under {RUNS}/; {hint}")


def names_of_runs(directory: Path = RUNS) -> list[str]:
    """Names of the runs in a directory, sorted."""
    return sorted(path.parent.name for path in directory.glob("*/provenance.json"))


def _a_file(text: str) -> str:
    """What a file is that stands where a run is expected, and what can be done with it."""
    path, word = Path(text), shlex.quote(text)
    if path.suffix in CONFIG_SUFFIXES:
        return f"{text} is a configuration, not a run: vcbench run {word} makes a run of it"
    if path.parent.joinpath("provenance.json").is_file():
        return f"{text} is a file of a run; give the run's directory: {shlex.quote(str(path.parent))}"
    if path.suffix in (".jsonl", ".json", ".parquet"):
        return (
            f"{text} is an outputs file, not a run: vcbench check REFERENCE {word} compares it with the reference's "
            f"outputs, and vcbench init --trace {word} makes a run of the prompts in it"
        )
    return f"{text} is a file, where the directory of a run is expected"
