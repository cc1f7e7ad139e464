"""What n requests say about all others: a bound on the rate of violations, and how long outputs stay identical."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vcbench.lossless.result import RequestVerdict, Verdict

JUDGED = (Verdict.IDENTICAL, Verdict.TIE_EXACT, Verdict.TIE_NEAR, Verdict.VIOLATION, Verdict.STOP_MISMATCH,
          Verdict.INCONCLUSIVE)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalStep:
    """At output token `step` (from 0): `at_risk` requests had got there still identical, `forked` leave here.

    surviving: estimated share of requests still identical after it (Kaplan and Meier); one that ends is no fork.
    """

    step: int
    at_risk: int
    forked: int
    surviving: float


def survival(verdicts: Iterable[RequestVerdict]) -> list[SurvivalStep]:
    """The steps at which the share changes; empty where no request forks."""
    lengths: list[int] = []
    forks: list[int] = []
    for verdict in verdicts:
        if verdict.verdict not in JUDGED:
            continue
        if verdict.step is None:
            lengths.append(verdict.tokens)
        else:
            forks.append(verdict.step)
    curve, share = [], 1.0
    for step in sorted(set(forks)):
        at_risk = sum(length > step for length in lengths) + sum(fork >= step for fork in forks)
        forked = forks.count(step)
        share *= 1 - forked / at_risk
        curve.append(SurvivalStep(step=step, at_risk=at_risk, forked=forked, surviving=share))
    return curve
