"""`vcbench compare`: the cells of one or more runs in one table, with the lossless verdict under it."""

from __future__ import annotations

import csv
import json
import shlex
import sys
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
from vcbench.metrics.summary import CellSummary, summarise
from vcbench.records.codec import plain
from vcbench.records.printable import never_fail, printable
from vcbench.records.reader import Run, load_run
from vcbench.report.columns import Labelled, flat
from vcbench.report.differences import differences, exclusions
from vcbench.report.table import build_table, columns_of
from vcbench.scoring.document import figure_dict, headline, scored
from vcbench.scoring.scores import Figure

SCHEMA_VERSION = 1
SHOWN = 10
"""Failed requests listed by name."""
LEGEND = "KV factor: bytes full/stored; first fork: median step, share of n; round: of at most k+1; ±: 95 %"
RICH_FALLBACK, PIPE_WIDTH = 80, 120
"""Without a terminal rich assumes the first; a pipe or file has no width, so all columns may stay."""


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
    runs: Sequence[Path], *, as_json: bool = False, as_csv: bool = False, as_markdown: bool = False, console: Console
) -> None:
    """Prints the comparison to the console, or as data to stdout.

    Raises UsageError where the runs cannot stand side by side: one given twice, or different prompts under one id.
    """
    if as_json + as_csv + as_markdown > 1:
        raise UsageError("choose one of --json, --csv and --markdown")
    loaded = [load_run(path) for path in runs]
    notes = [*differences(loaded), *exclusions(loaded)]
    compared = [
        Compared(run, summarise(run), check_loaded(run), headline(scored(run, own_only=True))) for run in loaded
    ]
    if as_json:
        print(json.dumps(plain(_document(compared, notes)), indent=2, allow_nan=False))
    elif as_csv:
        _write_csv(compared)
    elif as_markdown:
        print(markdown(compared, notes))
    else:
        _print(compared, notes, console)


def markdown(compared: Sequence[Compared], notes: Sequence[str]) -> str:
    """The table for a pull request, with its notes and verdicts."""
    headers, rows = _rows(compared)
    columns = columns_of(rows)
    titles = [*headers, *(" ".join(column.header.split()) for column in columns)]
    lines = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(headers) + " ---: |" * len(columns)]
    for each in rows:
        labels = [printable(label).replace("|", r"\|") for label in each.labels]
        lines.append(f"| {' | '.join([*labels, *(column.wide(each) for column in columns)])} |")
    lines.append("")
    for each_run in compared:
        lines += [f"- {line}" for line in _verdict(each_run, several=len(compared) > 1)]
    lines += [f"- {printable(note)}" for note in [*notes, *_problems(compared)]]
    return "\n".join(lines)


def _print(compared: Sequence[Compared], notes: Sequence[str], console: Console) -> None:
    never_fail(console.file)
    if not console.is_terminal and console.width == RICH_FALLBACK:
        console.width = PIPE_WIDTH
    headers, rows = _rows(compared)
    table, hidden = build_table(headers, rows, console)
    console.print(table)
    _say(console, LEGEND, style="dim")
    if hidden:
        _say(console, f"not shown at this width, but by --csv: {', '.join(hidden)}")
    for note in notes:
        _say(console, f"note: {printable(note)}")
    for problem in _problems(compared):
        _say(console, f"! {printable(problem)}")
    for each in compared:
        first, *more = _verdict(each, several=len(compared) > 1)
        _say(console, first, style="bold green" if each.check.outcome == "PASS" else "bold red")
        for line in more:
            _say(console, f"  {line}")
    _say(console, f"next: {_next(compared)}")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


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
            return f"vcbench show {shlex.quote(str(each.run.path))} --request {shlex.quote(printable(request))}"
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


def _write_csv(compared: Sequence[Compared]) -> None:
    names = dict.fromkeys(name for each in compared for found in each.headlines.values() for name in found)
    rows = [
        plain(flat(each.run.name, row) | {name: _headline_value(each, row, name) for name in names})
        for each in compared
        for row in each.rows
    ]
    if rows:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _headline_value(each: Compared, row: CellSummary, name: str) -> float | None:
    found = each.headline(row).get(name)
    return found.estimate.value if found is not None and found.estimate is not None else None
