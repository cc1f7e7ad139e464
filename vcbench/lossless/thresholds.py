"""`--fail-on`: thresholds beside the gate, each decided by an interval: pass, fail, or inconclusive."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vcbench.errors import UsageError
from vcbench.lossless.measures import COUNTS, MEASURES, Sample, count_of
from vcbench.lossless.outcome import CheckResult, Finding, Outcome
from vcbench.lossless.result import CellResult
from vcbench.metrics.interval import ratio, samples_to_decide
from vcbench.records.reader import Run
from vcbench.registry import suggest
from vcbench.scoring.document import scored
from vcbench.scoring.measures import score_samples
from vcbench.scoring.scores import Scores

_FORM = re.compile(r"\s*([a-z_0-9]+|[A-Za-z0-9_.-]+\.[A-Za-z0-9_-]+)\s*(<=|>=|<|>)\s*(\S+)\s*")
EXAMPLE = "violations>0,acceptance<8,speedup<1.2,kl>0.01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Fail where `metric` is below (`<`, `<=`) or above (`>`, `>=`) `bound`; `TASK.METRIC` is one of the scores."""

    metric: str
    operator: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric}{self.operator}{self.bound:g}"

    def crossed(self, value: float) -> bool:
        """Whether a value fails."""
        match self.operator:
            case "<":
                return value < self.bound
            case "<=":
                return value <= self.bound
            case ">":
                return value > self.bound
        return value >= self.bound


def parse_fail_on(text: str) -> list[Threshold]:
    """The thresholds in `metric<number, ...`. Raises UsageError, naming the part, on anything else."""
    found: dict[str, Threshold] = {}
    for part in text.split(","):
        threshold = _parse(part)
        if threshold.metric in found:
            raise UsageError(f"--fail-on names {threshold.metric} twice: {found[threshold.metric]} and {threshold}")
        found[threshold.metric] = threshold
    return list(found.values())


def _parse(part: str) -> Threshold:
    form = _FORM.fullmatch(part)
    if form is None:
        raise UsageError(f"--fail-on: {part.strip()!r} is not <metric> <operator> <number>; e.g. {EXAMPLE}")
    metric, operator, number = form.groups()
    known = [*COUNTS, *MEASURES]
    if metric not in known and "." not in metric:
        raise UsageError(f"--fail-on: unknown metric {metric!r}; {suggest(metric, known)}")
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise UsageError(f"--fail-on: {number!r} in {part.strip()!r} is not a finite number")
    higher_is_better = metric in MEASURES and MEASURES[metric].higher_is_better
    if "." not in metric and (operator[0] == "<") != higher_is_better:
        other = "<" if higher_is_better else ">"
        raise UsageError(
            f"--fail-on: {part.strip()!r} would fail a run for being better; write {metric}{other}{number}"
        )
    if metric in ("violations", "missing", "stop_mismatches") and (operator, bound) != (">", 0):
        raise UsageError(f"--fail-on: the gate fails on any of its {metric}; only {metric}>0 can be asked for")
    return Threshold(metric=metric, operator=operator, bound=bound)


def evaluate(thresholds: Sequence[Threshold], result: CheckResult, run: Run | None) -> list[Finding]:
    """Every threshold in every cell that has its metric; one that no cell has is inconclusive."""
    findings: list[Finding] = []
    scores = scored(run) if run is not None and any("." in each.metric for each in thresholds) else None
    for threshold in thresholds:
        found = [finding for cell in result.cells for finding in _in_cell(threshold, cell, run, scores)]
        if not found:
            detail = f"no cell of this run has {threshold.metric}"
            found = [Finding(rule=str(threshold), cell="", outcome="inconclusive", detail=detail)]
        findings += found
    return findings


def _in_cell(threshold: Threshold, cell: CellResult, run: Run | None, scores: Scores | None) -> list[Finding]:
    if "." in threshold.metric:
        wanted = score_samples(scores, cell.cell, threshold.metric, threshold.operator) if scores is not None else {}
        return [_decide(threshold, cell.name, list(wanted.values()))] if wanted else []
    if threshold.metric in COUNTS:
        if not cell.verdicts:
            return []
        count = count_of(threshold.metric, cell)
        outcome: Outcome = "fail" if threshold.crossed(count) else "pass"
        detail = f"{count} of {len(cell.verdicts)} requests"
        return [
            Finding(
                rule=str(threshold), cell=cell.name, outcome=outcome, detail=detail, value=count, n=len(cell.verdicts)
            )
        ]
    samples = MEASURES[threshold.metric].samples(run, cell.cell, cell.task) if run is not None else {}
    return [_decide(threshold, cell.name, list(samples.values()))] if samples else []


def _decide(threshold: Threshold, cell: str, samples: Sequence[Sample]) -> Finding:
    estimate = ratio([sample[0] for sample in samples], [sample[1] for sample in samples])
    if estimate is None:
        return Finding(rule=str(threshold), cell=cell, outcome="inconclusive", detail="nothing was measured")
    low, high = estimate.low, estimate.high
    if low is None or high is None:
        shown = f"{estimate.value:.4g} from one request, which has no interval"
        outcome: Outcome = "inconclusive"
    else:
        shown = f"{estimate.value:.4g} [{low:.4g}, {high:.4g}], n = {estimate.n}"
        crossed = {threshold.crossed(low), threshold.crossed(high)}
        outcome = "inconclusive" if len(crossed) > 1 else "fail" if crossed == {True} else "pass"
    more = None
    if outcome == "inconclusive":
        more = samples_to_decide(estimate.n, estimate.value - threshold.bound, estimate.half_width)
        shown += f"; {needed(more)}"
    return Finding(
        rule=str(threshold), cell=cell, outcome=outcome, detail=shown, value=estimate.value, low=low, high=high,
        n=estimate.n, more=more,
    )  # fmt: skip


def needed(more: int | None) -> str:
    """How many more samples would decide, in words."""
    if more is None:
        return "no sensible number of further requests would decide it"
    return f"about {more} more request{'' if more == 1 else 's'} would decide it"
