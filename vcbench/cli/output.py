"""Where the command line writes: results to stdout, everything said beside them to stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_OF_A_FILE = 200
QUICKSTART = Path("configs/quickstart.yaml")
WRITTEN = Path("vcbench.yaml")
"""What `vcbench init` writes unless it is told where."""


def notes() -> Console:
    """The console for progress, remarks and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def results() -> Console:
    """The console for what was asked for; wide where it is no terminal, so that nothing is cut from a file."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_OF_A_FILE
    return Console(highlight=False, width=width)


def write_json(value: Any) -> None:
    """One JSON document to stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def table(
    title: str, columns: list[str], rows: list[list[str]], *, right: tuple[int, ...] = (), wrap: tuple[int, ...] = ()
) -> Table:
    """A plain table; the columns in `right` hold numbers, those in `wrap` long text."""
    from rich import box
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(
            column, justify="right" if index in right else "left", no_wrap=index not in wrap, overflow="fold"
        )
    for row in rows:
        made.add_row(*map(escape_markup, row))
    return made


def escape_markup(text: str) -> str:
    """The text with nothing in it that rich would take for a style."""
    from rich.markup import escape

    return escape(text)


def next_command(*words: str | Path) -> None:
    """Says what to type next, quoted for the shell: only a command that works as it stands."""
    notes().print(f"next: {shlex.join(map(str, words))}", markup=False)


def begin() -> None:
    """Says what to begin with: a command that works in the working directory as it is."""
    next_command(*beginning())


def beginning() -> tuple[str, ...]:
    """The quickstart's plan where its configuration is here, else the command that writes a configuration."""
    if QUICKSTART.is_file():
        return ("vcbench", "run", str(QUICKSTART), "--dry-run")
    if WRITTEN.is_file():
        return ("vcbench", "run", str(WRITTEN), "--dry-run")
    return ("vcbench", "init")
