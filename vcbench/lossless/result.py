"""What the lossless gate finds: a verdict per request, a guard per way of being fooled, and an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from vcbench.metrics.interval import upper_bound
from vcbench.records.reader import CellInfo

if TYPE_CHECKING:
    from vcbench.lossless.answers import Arm
    from vcbench.lossless.cards import Card
    from vcbench.lossless.thresholds import Finding

BITWISE = "bitwise"
NEAR_TIES = "up to near ties"
"""The two levels. A pass always names its own."""
EXIT_CODES = {"PASS": 0, "FAIL": 1, "VACUOUS": 2, "INCONCLUSIVE": 2, "NOT_COMPARABLE": 3}


class Verdict(StrEnum):
    """What became of one request.

    IDENTICAL: same ids, same finish reason; at level bitwise the same logits too, where both were recorded.
    TIE_EXACT: at the fork the reference's two highest logits are equal in the compute precision.
    TIE_NEAR: at the fork both arms' tokens are within tau steps of the reference's leader, and so is all that follows.
    VIOLATION: a token further than tau below the leader; at level bitwise, any fork and any logit that differs.
    STOP_MISMATCH: one is a prefix of the other, another finish reason, or tokens past a stop or the cap.
    INCONCLUSIVE: a fork whose logits nobody has seen, or a tau above its cap.
    MISSING: no result, an error, or a record that contradicts itself.
    NOT_COMPARABLE: answers to different prompts.
    """

    IDENTICAL = "IDENTICAL"
    TIE_EXACT = "TIE_EXACT"
    TIE_NEAR = "TIE_NEAR"
    VIOLATION = "VIOLATION"
    STOP_MISMATCH = "STOP_MISMATCH"
    INCONCLUSIVE = "INCONCLUSIVE"
    MISSING = "MISSING"
    NOT_COMPARABLE = "NOT_COMPARABLE"


TIES = (Verdict.TIE_EXACT, Verdict.TIE_NEAR)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVerdict:
    """One request's verdict. `step`: index of the first token that differs; `tokens`: ids found equal.

    shortfall_steps: how far the worst of its tokens lies below the reference's leader, if it was audited.
    """

    task: str
    request: str
    verdict: Verdict
    detail: str = ""
    step: int | None = None
    tokens: int = 0
    shortfall_steps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A sign that the method was at work; where it fails, equal outputs prove nothing."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """One cell on one task. A lossy cell has guards and no verdicts; `arms`: reference and method behind the others."""

    cell: CellInfo
    task: str
    verdicts: tuple[RequestVerdict, ...]
    guards: tuple[Guard, ...]
    notes: tuple[str, ...] = ()
    arms: tuple[Arm, Arm] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The cell in words, with its task."""
        return f"{self.cell.label} ({self.task})" if self.task else self.cell.label

    @property
    def counts(self) -> Counter[Verdict]:
        """Requests by verdict."""
        return Counter(verdict.verdict for verdict in self.verdicts)

    @property
    def vacuous(self) -> tuple[Guard, ...]:
        """The guards that failed."""
        return tuple(guard for guard in self.guards if not guard.passed)


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
        """Requests that pass at this level; a tie never does at level bitwise."""
        return self.identical + (self.ties if self.level == NEAR_TIES else 0)

    @property
    def undecided(self) -> int:
        """Requests of which nothing can be said."""
        return _count(self.verdicts, [Verdict.INCONCLUSIVE])

    @property
    def bound(self) -> float | None:
        """Clopper-Pearson upper bound at 95 % on the rate of requests that do not pass."""
        return upper_bound(self.n - self.passed, self.n, confidence=self.confidence)

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
