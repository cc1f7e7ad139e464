"""How much smaller a cache is, from the bytes recorded at a request's start and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vcbench.records.schema import RequestLine

Moment = Literal["kv_start", "kv_end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Full cache over compressed one, summed over `n` requests; None where nothing was recorded.

    codes: the codes or kept pairs alone. stored: all that the draft cache holds. resident: the draft cache, the full
    cache and scratch together, so below 1 where both are held.
    """

    n: int
    codes: float | None
    stored: float | None
    resident: float | None
    stored_bytes: int | None
    full_bytes: int | None


def factors(lines: Sequence[RequestLine], moment: Moment) -> Factors:
    """The factors of a cell's requests at their start or end."""
    known = [kv for line in lines if (kv := getattr(line, moment)) is not None and _is_complete(kv)]
    if not known:
        return Factors(n=0, codes=None, stored=None, resident=None, stored_bytes=None, full_bytes=None)
    full, stored = _total(known, "full"), _total(known, "stored")
    return Factors(
        n=len(known),
        codes=_over(full, _total(known, "codes")),
        stored=_over(full, stored),
        resident=_over(full, _total(known, "resident")),
        stored_bytes=stored,
        full_bytes=full,
    )


def _is_complete(kv: Mapping[str, Any]) -> bool:
    return all(type(kv.get(name)) is int for name in ("codes", "stored", "full", "resident"))


def _total(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def _over(full: int, held: int) -> float | None:
    return full / held if held else None
