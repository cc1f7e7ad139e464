"""HTML to TSV of LongProc: rows of a table compared with the right ones.

Source: Ye et al., LongProc, arXiv 2501.05414.
"""

from __future__ import annotations

import csv
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

FENCE = "```tsv"
ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
EMPTY = "na"

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """How the rows of two tables overlap, both 0 to 1."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean of both; 0 if both are 0."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def table(answer: str) -> list[Cells] | None:
    """The rows of an answer's table below its header, cells without case, punctuation, articles and spaces.

    The table stands in a fence `tsv`, or is the whole answer. A row of another width than the header counts as a row of
    nothing, but a last one is left out: it is the end of a truncated answer, or a remark. None if there is no table.
    """
    text = re.sub(r"```.*", "", answer.partition(FENCE)[2], flags=re.DOTALL) if FENCE in answer else answer
    try:
        lines = list(csv.reader(text.strip().split("\n"), delimiter="\t"))
    except csv.Error:
        return None
    if not lines or not lines[0]:
        return None
    width, rows = len(lines[0]), lines[1:]
    if rows and len(rows[-1]) != width:
        rows.pop()
    return [_cells(row, width) for row in rows] or None


def overlap(answer: Sequence[Cells], right: Sequence[Cells]) -> Overlap:
    """The share of the answer's rows that are right, and of the right rows that the answer has; order is no matter."""
    return Overlap(_share(answer, right), _share(right, answer))


def _share(rows: Sequence[Cells], among: Sequence[Cells]) -> float:
    known = set(among)
    return sum(row in known for row in rows) / len(rows)


def _cells(row: Sequence[str], width: int) -> Cells:
    return tuple(_plain(cell) for cell in row) if len(row) == width else (EMPTY,) * width


def _plain(cell: str) -> str:
    return "".join(ARTICLES.sub(" ", cell.lower().translate(PUNCTUATION)).split())
