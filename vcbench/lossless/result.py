"""What the lossless gate finds in a cell: a verdict per request, a guard per way of being fooled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from vcbench.lossless.answers import Arm
from vcbench.records.reader import CellInfo


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
    prompt: hash of the prompt that its conversation began with; empty where nobody knows it.
    """

    task: str
    request: str
    verdict: Verdict
    detail: str = ""
    step: int | None = None
    tokens: int = 0
    shortfall_steps: float | None = None
    prompt: str = ""

    @property
    def sample(self) -> tuple[str, str]:
        """What is one independent sample: the prompt, whatever cell answered it, and under whatever names."""
        return ("", self.prompt) if self.prompt else (self.task, self.request)


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
