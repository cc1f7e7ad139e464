"""`vcbench compare`: the cells of one or more runs in one table, with the lossless verdict under it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from vcbench.errors import UsageError
from vcbench.lossless.check import check_loaded
from vcbench.lossless.document import as_dict
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.render import headline as verdict_line
from vcbench.lossless.render import reasons, remarks
from vcbench.lossless.result import Verdict
from vcbench.metrics.load import busy_note
from vcbench.metrics.summary import CellSummary, summarise
from vcbench.records.codec import plain
from vcbench.records.printable import markdown_text, never_fail, printable
from vcbench.records.reader import Run, load_run
from vcbench.report.columns import Labelled, columns_of, label_columns
from vcbench.report.differences import differences, exclusions
from vcbench.report.flat import flat
from vcbench.report.frame import csv_text, write_parquet
from vcbench.report.table import fit, print_whole, say, signs
from vcbench.scoring.document import figure_dict, headline, scored
from vcbench.scoring.scores import Figure

SCHEMA_VERSION = 2
SHOWN = 10
"""Failed requests listed by name."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One run with all that is shown of it."""

    run: Run
    rows: list[CellSummary]
    check: CheckResult
    headlines: dict[tuple[str, str], dict[str, Figure]]
    """By task and cell id."""

    def headline(self, row: CellSummary) -> dict[str, Figure]:
        """The headline metrics of a row's task in its cell."""
        return self.headlines.get((row.task, row.cell.id), {})


def render(
    runs: Sequence[Path],
    *,
    as_json: bool = False,
    as_csv: bool = False,
    as_markdown: bool = False,
    parquet: Path | None = None,
    console: Console,
) -> None:
    """Prints the comparison to the console, or as data to stdout; `parquet` is a file to write its figures to.

    Raises UsageError where the runs cannot stand side by side: one given twice, or different prompts under one id.
    """
    if as_json + as_csv + as_markdown > 1:
        raise UsageError("choose one of --json, --csv and --markdown")
    loaded = [load_run(path) for path in runs]
    notes = differences(loaded)
    compared = [
        Compared(run, summarise(run), check_loaded(run), headline(scored(run, own_only=True))) for run in loaded
    ]
    notes += [*_conditions(compared), *exclusions(loaded), *lacking(loaded)]
    if parquet is not None:
        write_parquet(_flat(compared), parquet)
    if as_json:
        print(json.dumps(plain(_document(compared, notes)), indent=2, allow_nan=False))
    elif as_csv:
        print(csv_text(_flat(compared)), end="")
    elif as_markdown:
        print(markdown(compared, notes))
    else:
        _print(compared, notes, console)


def lacking(runs: Sequence[Run]) -> list[str]:
    """What each run's backend cannot give, so that its figures are missing."""
    return [f"{run.name}: its backend gives no {', no '.join(run.lacks())}" for run in runs if run.lacks()]


def markdown(compared: Sequence[Compared], notes: Sequence[str]) -> str:
    """The table for a pull request, with its notes and verdicts."""
    headers, rows = _rows(compared)
    columns = [column for column in [*label_columns(headers, rows), *columns_of(rows)] if not column.empty]
    lines = [f"- {markdown_text(note)}" for note in notes]
    lines += [""] if lines else []
    lines.append(f"| {' | '.join(column.title for column in columns)} |")
    lines.append("|" + "".join(" --- |" if column.label else " ---: |" for column in columns))
    for index in range(len(rows)):
        texts = [markdown_text(column.cells[index]) for column in columns]
        lines.append(f"| {' | '.join(texts)} |")
    said = [column.legend for column in columns if column.legend]
    lines += ["", "; ".join([*dict.fromkeys(said), *signs(t for column in columns for t in column.cells)]), ""]
    for each_run in compared:
        lines += [f"- {markdown_text(line)}" for line in _verdict(each_run, several=len(compared) > 1)]
    lines += [f"- {markdown_text(problem)}" for problem in _problems(compared)]
    return "\n".join(lines)


def _print(compared: Sequence[Compared], notes: Sequence[str], console: Console) -> None:
    never_fail(console.file)
    for note in notes:
        say(console, f"note: {printable(note)}")
    headers, rows = _rows(compared)
    fitted = fit([*label_columns(headers, rows), *columns_of(rows)], console)
    print_whole(console, fitted.table)
    if fitted.legend():
        say(console, fitted.legend(), style="dim")
    if fitted.hidden:
        say(console, f"not shown at this width, but by --csv: {', '.join(fitted.hidden)}")
    for problem in _problems(compared):
        say(console, f"! {printable(problem)}")
    for each in compared:
        first, *more = _verdict(each, several=len(compared) > 1)
        say(console, first, style="bold green" if each.check.outcome == "PASS" else "bold red")
        for line in more:
            say(console, f"  {line}")
    console.print(Text(f"next: {_next(compared)}"), soft_wrap=True)


def _conditions(compared: Sequence[Compared]) -> list[str]:
    """What a reader must know before any speed: a busy machine, and batches that have no partner."""
    notes = []
    for each in compared:
        named = f"{each.run.name}: " if len(compared) > 1 else ""
        if note := busy_note(row.load for row in each.rows):
            notes.append(named + note)
        apart = [row for row in each.rows if row.paired < row.batches and each.run.baseline(row.task) is not None]
        notes += [
            f"{named}{row.cell.label}, task {row.task}: speed-ups are over {row.paired} of {row.batches} batches, "
            "those whose requests full KV decoded together too"
            for row in apart
        ]
    return notes


def _rows(compared: Sequence[Compared]) -> tuple[list[str], list[Labelled]]:
    """Headers of the label columns, only those that tell rows apart, and the rows."""
    several, tasks = len(compared) > 1, len({row.task for each in compared for row in each.rows}) > 1
    headers = [*(["run"] if several else []), *(["task"] if tasks else []), "cell"]
    rows = [
        Labelled(
            labels=(*([each.run.name] if several else []), *([row.task] if tasks else []), row.cell.label),
            row=row,
            headline=each.headline(row),
        )
        for each in compared
        for row in each.rows
    ]
    return headers, rows


def _verdict(each: Compared, *, several: bool) -> list[str]:
    """The lossless verdict of a run, and what speaks against it."""
    named = f"{printable(each.run.name)}: " if several else ""
    if not any(row.cell.arm == "vericache" for row in each.rows):
        return [f"{named}no VeriCache cell: nothing to say about losslessness"]
    outcome = "" if each.check.outcome == "PASS" else f"{each.check.outcome}: "
    return [f"{named}{outcome}{verdict_line(each.check)}", *reasons(each.check), *remarks(each.check)]


def _problems(compared: Sequence[Compared]) -> list[str]:
    """Failed requests and contradictions, but for those that the verdict names anyway."""
    found: list[str] = []
    for each in compared:
        said = "\n".join(reasons(each.check))
        found += [p for row in each.rows for p in row.problems if printable(p.partition(": ")[2]) not in said]
    return found if len(found) <= SHOWN else [*found[:SHOWN], f"and {len(found) - SHOWN} more (--json lists all)"]


def _next(compared: Sequence[Compared]) -> str:
    """What to type next: a look at the first request that is not as it should be, else at the first of all."""
    for each in compared:
        wrong = [v.request for v in each.check.verdicts if v.verdict is not Verdict.IDENTICAL]
        for request in [*wrong, *(name for _, name in each.run.prompts)]:
            if printable(request) != request:
                return shlex.join(["vcbench", "show", str(each.run.path)])
            return shlex.join(["vcbench", "show", str(each.run.path), "--request", request])
    return f"vcbench check {shlex.quote(str(compared[0].run.path))}"


def _document(compared: Sequence[Compared], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "notes": list(notes),
        "runs": [
            {
                "name": each.run.name,
                "complete": each.run.complete,
                "dropped": each.run.dropped,
                "model": each.run.provenance.get("model"),
                "cells": [
                    row.as_dict()
                    | {"headline": {name: figure_dict(found) for name, found in each.headline(row).items()}}
                    for row in each.rows
                ],
                "lossless": as_dict(each.check),
            }
            for each in compared
        ],
    }


def _flat(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    return [flat(each.run.name, row, each.headline(row)) for each in compared for row in each.rows]
