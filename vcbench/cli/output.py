"""Where the command line writes: results to stdout, everything said beside them to stderr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def notes() -> Console:
    """The console for progress, remarks and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def results() -> Console:
    """The console for what was asked for."""
    from rich.console import Console

    return Console(highlight=False)


def write_json(value: Any) -> None:
    """One JSON document to stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def table(title: str, columns: list[str], rows: list[list[str]], *, right: tuple[int, ...] = ()) -> Table:
    """A plain table; the columns in `right` hold numbers."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def next_command(command: str) -> None:
    """Says what to type next."""
    notes().print(f"next: {command}", markup=False)
