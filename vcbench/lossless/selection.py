"""Which part of some records is checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vcbench.errors import UsageError
from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo
from vcbench.registry import suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which part of the records is checked: cells by label or id, requests by id; None takes all."""

    cell: str | None = None
    requests: frozenset[str] | None = None

    def has_cell(self, cell: CellInfo) -> bool:
        return self.cell in (None, cell.label, cell.id)

    def has_request(self, request: str) -> bool:
        return self.requests is None or request in self.requests

    def refuse_unknown(self, cells: Sequence[CellInfo], requests: Iterable[str]) -> None:
        """Raises UsageError, with the nearest name, for a cell or request that is not there."""
        labels = list(dict.fromkeys(cell.label for cell in cells))
        if self.cell is not None and self.cell not in (*labels, *(cell.id for cell in cells)):
            raise UsageError(f"no cell {printable(self.cell)!r}; {suggest(self.cell, labels)}")
        known = list(dict.fromkeys(requests))
        for request in sorted((self.requests or frozenset()) - set(known)):
            raise UsageError(
                f"no request {printable(request)!r}; {suggest(request, known) if known else 'none at all'}"
            )


EVERYTHING = Selection()
