"""What the lossless gate answers: all cells, what stands beside them, one outcome and its exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from vcbench.lossless.cards import Card
from vcbench.lossless.result import TIES, CellResult, RequestVerdict, Verdict
from vcbench.metrics.interval import upper_bound

BITWISE = "bitwise"
NEAR_TIES = "up to near ties"
"""The two levels. A pass always names its own."""
EXIT_CODES = {"PASS": 0, "FAIL": 1, "VACUOUS": 2, "INCONCLUSIVE": 2, "NOT_COMPARABLE": 3}

Outcome = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one threshold in one cell. `more`: requests that would decide it, None where that is unknown."""

    rule: str
    cell: str
    outcome: Outcome
    detail: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    more: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSummary:
    """What teacher-forcing the reference showed.

    tau_steps: largest shortfall of the reference's own output, in steps of `dtype`; above `cap` nothing is decided.
    """

    model: str
    dtype: str
    tau_steps: float
    cap: float
    requests: int
    tokens: int

    @property
    def decides(self) -> bool:
        """Whether tau is small enough to tell a tie from a violation."""
        return self.tau_steps <= self.cap


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The gate's answer. `problems`: why it cannot pass whatever its requests say; `differences`: why nothing compares.

    `fault`: the fault that was built into the engine on purpose. `findings`: thresholds and the baseline.
    """

    run: str
    exactness: str
    cells: tuple[CellResult, ...] = ()
    problems: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    audit: AuditSummary | None = None
    findings: tuple[Finding, ...] = ()
    fault: str | None = None
    confidence: float = field(default=0.95)

    @property
    def level(self) -> str:
        """How strong a pass is: `bitwise` only where the engine ran so."""
        return BITWISE if self.exactness == BITWISE else NEAR_TIES

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
        """Requests with the same output."""
        return _count(self.verdicts, [Verdict.IDENTICAL])

    @property
    def ties(self) -> int:
        """Requests that fork at a tie."""
        return _count(self.verdicts, TIES)

    @property
    def passed(self) -> int:
        """Requests that pass at this level."""
        return sum(map(self.passes, self.verdicts))

    @property
    def undecided(self) -> int:
        """Requests of which nothing can be said."""
        return _count(self.verdicts, [Verdict.INCONCLUSIVE])

    @property
    def prompts(self) -> int:
        """Independent prompts among the requests judged: cells that answer the same ones are no further samples."""
        return len({verdict.sample for verdict in self.verdicts})

    @property
    def judged_cells(self) -> int:
        """Cells with a verdict."""
        return sum(bool(cell.verdicts) for cell in self.cells)

    @property
    def bound(self) -> float | None:
        """The bound of the cell that shows least: what holds of every one of them, each for itself."""
        bounds = [bound for cell in self.cells if (bound := self.bound_of(cell)) is not None]
        return max(bounds, default=None)

    def bound_of(self, cell: CellResult) -> float | None:
        """Clopper-Pearson upper bound at 95 % on the rate of prompts of which a cell's answer does not pass."""
        samples = {verdict.sample for verdict in cell.verdicts}
        wrong = {verdict.sample for verdict in cell.verdicts if not self.passes(verdict)}
        return upper_bound(len(wrong), len(samples), confidence=self.confidence)

    def passes(self, verdict: RequestVerdict) -> bool:
        """Whether a verdict passes at this level; a tie never does at level bitwise."""
        return verdict.verdict is Verdict.IDENTICAL or (verdict.verdict in TIES and self.level == NEAR_TIES)

    @property
    def tokens(self) -> int:
        """Ids found equal."""
        return sum(verdict.tokens for verdict in self.verdicts)

    @property
    def outcome(self) -> str:
        """`NOT_COMPARABLE`, `FAIL`, `INCONCLUSIVE`, `VACUOUS` or `PASS`, the first that applies."""
        if self.differences or _count(self.verdicts, [Verdict.NOT_COMPARABLE]):
            return "NOT_COMPARABLE"
        found = {finding.outcome for finding in self.findings}
        if self.problems or self.passed + self.undecided < self.n or "fail" in found:
            return "FAIL"
        if self.undecided or "inconclusive" in found or (self.audit is not None and not self.audit.decides):
            return "INCONCLUSIVE"
        if not self.n or any(cell.vacuous for cell in self.cells):
            return "VACUOUS"
        return "PASS"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 violation or missing results, 2 inconclusive or vacuous, 3 not comparable."""
        return EXIT_CODES[self.outcome]


def _count(verdicts: Iterable[RequestVerdict], wanted: Iterable[Verdict]) -> int:
    kinds = frozenset(wanted)
    return sum(verdict.verdict in kinds for verdict in verdicts)
