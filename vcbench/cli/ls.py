"""`vcbench ls`: what can be named in a configuration."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vcbench.cli.output import begin, results, table, write_json
from vcbench.cli.runs import RUNS, runs


class Kind(StrEnum):
    """What can be listed."""

    COMPRESSORS = "compressors"
    TASKS = "tasks"
    RUNS = "runs"


def ls(
    kind: Annotated[Kind, typer.Argument(help="What to list; runs: the same as `vcbench runs`.")],
    directory: Annotated[Path, typer.Option("--dir", help="Where runs lie.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """List compressors or tasks, with their options."""
    if kind is Kind.RUNS:
        runs(directory=directory, as_json=as_json)
        return
    rows = _registered(kind)
    if as_json:
        write_json(rows)
        return
    results().print(table(kind, list(rows[0]), [list(row.values()) for row in rows], wrap=(1, 2)))
    begin()


def _registered(kind: Kind) -> list[dict[str, str]]:
    from vcbench import registry
    from vcbench.config.reader import keys_of

    singular = kind.removesuffix("s")
    found = [(name, registry.lookup(singular, name)) for name in registry.names(singular)]
    return [
        {"name": name, "options": ", ".join(keys_of(cls.Options)) or "none", "what it does": cls.summary}
        for name, cls in found
    ]
