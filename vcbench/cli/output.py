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
    from rich.text import Text

WIDTH_OF_A_FILE = 200
QUICKSTART = Path("configs/quickstart.yaml")
WRITTEN = Path("vcbench.yaml")
"""What `vcbench init` writes unless it is told where."""


def notes() -> Console:
    """The console for progress, remarks and errors."""
    return _safe_console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def results() -> Console:
    """The console for what was asked for; wide where it is no terminal, so that nothing is cut from a file."""
    width = None if sys.stdout.isatty() or _asked_width() else WIDTH_OF_A_FILE
    return _safe_console(highlight=False, width=width, emoji=False)


def _asked_width() -> int:
    """The width that the environment asks for; 0 where it names none that a line could have."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() else 0


def _safe_console(**options: Any) -> Console:
    """A console in whose plain text nothing moves the cursor, whoever wrote it."""
    from rich.console import Console

    from vcbench.records.printable import printable

    class SafeConsole(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text, newlines=True), **how)

    # rich takes COLUMNS=0 at its word, and then prints nothing at all.
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS" or _asked_width()}
    return SafeConsole(**options, _environ=environment)


def write_json(value: Any) -> None:
    """One JSON document to stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def table(
    title: str, columns: list[str], rows: list[list[str]], *, right: tuple[int, ...] = (), wrap: tuple[int, ...] = ()
) -> Table:
    """A plain table; the columns in `right` hold numbers, those in `wrap` long text."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from vcbench.records.printable import printable

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(
            column, justify="right" if index in right else "left", no_wrap=index not in wrap, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(printable(text)) for text in row))
    return made


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
