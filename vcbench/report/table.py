"""One model of a table for `compare`, `score` and the rest: it fits its screen, and says what it left out.

Where it is too wide, intervals that can be spared go first, then whole columns by rank, then spaces between columns;
then labels wrap between words. What is unknown in every row takes no room at all.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from vcbench.records.printable import printable

STYLES = {"full": "cyan", "lossy": "yellow", "vericache": "green"}
"""Colour of a cell's label by arm; the label names the arm too."""
UNKNOWN = "-"
UNBOUNDED = 10_000
SPARED = 2.0
"""Columns of this rank and above go before anything wraps; those of rank 0 stay, whatever the width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column with its text in every row. short: the same without intervals, where they may be spared.

    legend: what a reader must know of it, shown where the column is. label: words that say what a row is, which may
    wrap. words: figures in words; both are left-aligned.
    """

    key: str
    header: str
    rank: float
    cells: Sequence[str]
    short: Sequence[str] | None = None
    legend: str = ""
    label: bool = False
    words: bool = False
    styles: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The header in one line."""
        return " ".join(self.header.split())

    @property
    def empty(self) -> bool:
        """Whether nothing is known in any row."""
        return not self.label and all(text in (UNKNOWN, "") for text in self.cells)


@dataclass(slots=True)
class Layout:
    """How much of the columns is shown."""

    columns: list[Column]
    whole: list[bool] = field(default_factory=list)
    padding: int = 1
    wrap: bool = False

    def texts(self) -> list[Sequence[str]]:
        """Each column's text as shown."""
        return [
            each.cells if whole or each.short is None else each.short
            for each, whole in zip(self.columns, self.whole, strict=True)
        ]

    def widths(self) -> list[int]:
        """What each column takes at least: a label that wraps, its longest word."""
        return [
            max(
                (cell_len(part) for text in (each.header, *texts) for part in _parts(text, self.wraps(each))), default=1
            )
            for each, texts in zip(self.columns, self.texts(), strict=True)
        ]

    def wraps(self, column: Column) -> bool:
        """Whether the column is broken between words."""
        return self.wrap and column.label

    def least_width(self) -> int:
        """What the whole table takes at least."""
        widths = self.widths()
        return sum(widths) + (1 + self.padding) * (len(widths) - 1) + self.padding

    def without(self, column: Column) -> None:
        """Takes a column out."""
        index = self.columns.index(column)
        del self.columns[index], self.whole[index]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table that fits, as far as it can, and what belongs under it."""

    table: Table
    columns: list[Column]
    hidden: list[str]
    texts: list[Sequence[str]]

    def legend(self) -> str:
        """What the shown columns and signs mean, and nothing about others."""
        said = [column.legend for column in self.columns if column.legend]
        return "; ".join([*dict.fromkeys(said), *signs(text for texts in self.texts for text in texts)])


def signs(texts: Iterable[str]) -> list[str]:
    """What the signs of intervals mean, of those that occur."""
    every = "\n".join(texts)
    found = ["±: half of the 95 % interval"] if "±" in every.replace("±?", "") else []
    found += ["±?: one batch, so no interval"] if "±?" in every else []
    return [*found, "[ ]: 95 % interval"] if "[" in every else found


def fit(columns: Sequence[Column], console: Console) -> Fitted:
    """The table of these columns, as wide as the console at most if that can be."""
    kept = [column for column in columns if not column.empty]
    layout = Layout(list(kept), [True] * len(kept))
    while layout.least_width() > console.width and _give_way(layout):
        pass
    hidden = [column.title for column in kept if column not in layout.columns]
    return Fitted(_table(layout, console.width), layout.columns, hidden, layout.texts())


def _give_way(layout: Layout) -> bool:
    """One step towards a narrower table; False where there is none left."""
    intervals = [i for i, column in enumerate(layout.columns) if layout.whole[i] and column.short is not None]
    spared = [column for column in layout.columns if column.rank >= SPARED]
    last = [column for column in layout.columns if 0 < column.rank < SPARED]
    if intervals:
        layout.whole[max(intervals, key=lambda i: layout.columns[i].rank)] = False
    elif spared:
        layout.without(max(spared, key=lambda column: column.rank))
    elif layout.padding:
        layout.padding = 0
    elif not layout.wrap:
        layout.wrap = True
    elif last:
        layout.without(max(last, key=lambda column: column.rank))
    else:
        return False
    return True


def print_whole(console: Console, table: Table) -> None:
    """Prints the table, beyond the width of a narrow screen if need be: no figure is cut and no word broken."""
    screen = console.width
    console.width = max(screen, table_width(table, console))
    try:
        console.print(table, crop=False)
    finally:
        console.width = screen


def table_width(table: Table, console: Console) -> int:
    """Columns of the screen that the table takes with nothing cut."""
    return Measurement.get(console, console.options.update(width=UNBOUNDED, max_width=UNBOUNDED), table).maximum


def bare_table(padding: int = 1) -> Table:
    """A table without frame."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, padding, 0, 0), pad_edge=False, show_edge=False)


def say(console: Console, text: str, style: str = "") -> None:
    """A line of words, broken between them where it is wider than the console."""
    wrap = textwrap.TextWrapper(console.width, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
    for line in wrap.wrap(text):
        console.print(Text(line, style=style), soft_wrap=True)


def _parts(text: str, wraps: bool) -> list[str]:
    shown = printable(text, newlines=True)
    return shown.split() if wraps else shown.split("\n")


def _table(layout: Layout, screen: int) -> Table:
    table = bare_table(layout.padding)
    texts, least = layout.texts(), layout.widths()
    room = max(0, screen - layout.least_width())
    for column, shown, width in zip(layout.columns, texts, least, strict=True):
        if layout.wraps(column):
            whole = max(cell_len(printable(text)) for text in (column.header, *shown))
            given = min(room, whole - width)
            width, room = width + given, room - given
        table.add_column(
            column.header,
            justify="left" if column.label or column.words else "right",
            no_wrap=not layout.wraps(column),
            overflow="fold",
            vertical="bottom",
            width=width,
        )
    for row in range(len(texts[0]) if texts else 0):
        table.add_row(
            *(
                Text(printable(shown[row]), style=column.styles[row] if column.styles else "")
                for column, shown in zip(layout.columns, texts, strict=True)
            )
        )
    return table
