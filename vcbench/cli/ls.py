"""`vcbench ls`: what can be named in a configuration, and the runs that are there."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vcbench.cli.output import next_command, notes, results, table, write_json
from vcbench.cli.runs import RUNS


class Kind(StrEnum):
    """What can be listed."""

    COMPRESSORS = "compressors"
    TASKS = "tasks"
    RUNS = "runs"


def ls(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    directory: Annotated[Path, typer.Option("--dir", help="Where runs lie.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List compressors, tasks or runs."""
    rows = _runs(directory) if kind is Kind.RUNS else _registered(kind)
    if as_json:
        write_json(rows)
        return
    columns = list(rows[0]) if rows else []
    if rows:
        results().print(table(kind, columns, [list(row.values()) for row in rows], wrap=(1, 2, 5)))
    elif kind is Kind.RUNS:
        notes().print(f"no runs under {directory}", markup=False)
    next_command(_next(kind, rows, directory))


def _registered(kind: Kind) -> list[dict[str, str]]:
    from vcbench import registry
    from vcbench.config.reader import keys_of

    singular = kind.removesuffix("s")
    found = [(name, registry.lookup(singular, name)) for name in registry.names(singular)]
    return [
        {"name": name, "options": ", ".join(keys_of(cls.Options)) or "none", "what it does": cls.summary}
        for name, cls in found
    ]


def _runs(directory: Path) -> list[dict[str, str]]:
    from vcbench.report.runs import list_runs

    return [
        {
            "run": entry.name,
            "started": entry.started or "-",
            "model": entry.model or "-",
            "cells": str(entry.cells),
            "answers": f"{entry.answers} of {entry.expected}",
            "state": entry.state,
        }
        for entry in list_runs(directory)
    ]


def _next(kind: Kind, rows: list[dict[str, str]], directory: Path) -> str:
    if kind is Kind.RUNS:
        return f"vcbench compare {directory / rows[-1]['run']}" if rows else "vcbench run configs/quickstart.yaml"
    return "vcbench run configs/quickstart.yaml --dry-run"
