"""What the lossless gate finds: a verdict per request, a guard per way of being fooled, and an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vcbench.metrics.interval import upper_bound
from vcbench.records.reader import CellInfo

SCHEMA_VERSION = 1


class Verdict(StrEnum):
    """What became of one request. Only `IDENTICAL` passes.

    LOGITS_DIFFER: same tokens, but at level bitwise the logits behind them are not the same bits.
    """

    IDENTICAL = "IDENTICAL"
    LOGITS_DIFFER = "LOGITS_DIFFER"
    DIVERGED = "DIVERGED"
    STOP_MISMATCH = "STOP_MISMATCH"
    MISSING = "MISSING"
    ERROR = "ERROR"
    NOT_COMPARABLE = "NOT_COMPARABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVerdict:
    """One request's verdict. `step`: index of the first token that differs; `tokens`: ids found equal."""

    task: str
    request: str
    verdict: Verdict
    detail: str = ""
    step: int | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A sign that the method was at work; where it fails, equal outputs prove nothing."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """One cell on one task. A lossy cell has guards and no verdicts."""

    cell: CellInfo
    task: str
    verdicts: tuple[RequestVerdict, ...]
    guards: tuple[Guard, ...]
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[Verdict]:
        """Requests by verdict."""
        return Counter(verdict.verdict for verdict in self.verdicts)

    @property
    def vacuous(self) -> tuple[Guard, ...]:
        """The guards that failed."""
        return tuple(guard for guard in self.guards if not guard.passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The gate's answer for a run. `problems`: why the run as a whole cannot pass, whatever its requests say."""

    run: str
    exactness: str
    cells: tuple[CellResult, ...]
    problems: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """How strong a pass is: `bitwise` only where the engine ran so."""
        return "bitwise" if self.exactness == "bitwise" else "up to near ties"

    @property
    def verdicts(self) -> list[RequestVerdict]:
        """All verdicts, of all VeriCache cells."""
        return [verdict for cell in self.cells for verdict in cell.verdicts]

    @property
    def n(self) -> int:
        """Requests judged."""
        return len(self.verdicts)

    @property
    def identical(self) -> int:
        """Requests that passed."""
        return _count(self.verdicts, Verdict.IDENTICAL)

    @property
    def bound(self) -> float | None:
        """Clopper-Pearson upper bound at 95 % on the rate of requests that do not pass."""
        return upper_bound(self.n - self.identical, self.n)

    @property
    def outcome(self) -> str:
        """`NOT_COMPARABLE`, `FAIL`, `VACUOUS` or `PASS`, the first that applies."""
        if _count(self.verdicts, Verdict.NOT_COMPARABLE):
            return "NOT_COMPARABLE"
        if self.problems or self.identical < self.n:
            return "FAIL"
        if not self.n or any(cell.vacuous for cell in self.cells):
            return "VACUOUS"
        return "PASS"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 violation or missing results, 2 vacuous, 3 not comparable."""
        return {"PASS": 0, "FAIL": 1, "VACUOUS": 2, "NOT_COMPARABLE": 3}[self.outcome]

    def as_dict(self) -> dict[str, Any]:
        """Plain data with a schema version, for JSON."""
        return {
            "schema": SCHEMA_VERSION,
            "run": self.run,
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "level": self.level,
            "requests": self.n,
            "identical": self.identical,
            "violation_rate_upper_95": self.bound,
            "tokens_checked": sum(verdict.tokens for verdict in self.verdicts),
            "problems": list(self.problems),
            "cells": [_cell_dict(cell) for cell in self.cells],
        }


def _count(verdicts: Iterable[RequestVerdict], wanted: Verdict) -> int:
    return sum(verdict.verdict is wanted for verdict in verdicts)


def _cell_dict(cell: CellResult) -> dict[str, Any]:
    return {
        "id": cell.cell.id,
        "label": cell.cell.label,
        "task": cell.task,
        "counts": {str(verdict): cell.counts[verdict] for verdict in Verdict if cell.counts[verdict]},
        "guards": [{"name": g.name, "passed": g.passed, "detail": g.detail} for g in cell.guards],
        "notes": list(cell.notes),
        "requests": [
            {
                "request": v.request,
                "verdict": str(v.verdict),
                "step": v.step,
                "tokens": v.tokens,
                "detail": v.detail,
            }
            for v in cell.verdicts
        ],
    }
