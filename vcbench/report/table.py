"""The comparison as a table that fits its screen: intervals go first, then whole columns by rank, and it says which."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from vcbench.records.printable import printable
from vcbench.report.columns import COLUMNS, Column, Labelled, headline_columns

STYLES = {"full": "cyan", "lossy": "yellow", "vericache": "green"}
"""Colour of a cell's label by arm; the label names the arm too."""
UNBOUNDED = 10_000


def build_table(headers: Sequence[str], rows: Sequence[Labelled], console: Console) -> tuple[Table, list[str]]:
    """The table, and the headers of the columns that had to be left out."""
    every = columns_of(rows)
    shown = list(every)
    wide = [column for column in shown if any(column.wide(each) != column.narrow(each) for each in rows)]
    table = _table(headers, rows, shown, wide)
    while table_width(table, console) > console.width:
        # Those of rank 0 stay, whatever the width.
        removable = wide or [column for column in shown if column.rank]
        if not removable:
            break
        last = max(removable, key=lambda column: column.rank)
        (wide if wide else shown).remove(last)
        table = _table(headers, rows, shown, wide)
    return table, [" ".join(column.header.split()) for column in every if column not in shown]


def columns_of(rows: Sequence[Labelled]) -> list[Column]:
    """The columns that every run has, and those of its tasks' headline metrics after the first."""
    first, *others = COLUMNS
    return [first, *headline_columns(rows), *others]


def print_whole(console: Console, table: Table) -> None:
    """Prints the table at its own width, beyond that of a narrow screen if need be: no figure is cut."""
    screen = console.width
    console.width = max(screen, table_width(table, console))
    try:
        console.print(table, crop=False, no_wrap=True)
    finally:
        console.width = screen


def table_width(table: Table, console: Console) -> int:
    """Columns of the screen that the table takes with nothing cut or wrapped."""
    return Measurement.get(console, console.options.update(width=UNBOUNDED, max_width=UNBOUNDED), table).maximum


def _table(
    headers: Sequence[str], rows: Sequence[Labelled], shown: Sequence[Column], wide: Collection[Column]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold", vertical="bottom")
    for column in shown:
        table.add_column(column.header, justify="right", no_wrap=True, vertical="bottom")
    for each in rows:
        labels = [Text(printable(label), style=STYLES.get(each.row.cell.arm, "")) for label in each.labels]
        figures = [column.wide(each) if column in wide else column.narrow(each) for column in shown]
        table.add_row(*labels, *figures)
    return table
