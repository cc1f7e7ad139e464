"""A run against a stored one: the same requests of the same cells, paired, with a tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vcbench.errors import UsageError
from vcbench.lossless.answers import SETTINGS, settings_of_run
from vcbench.lossless.measures import MEASURES, Measure, Samples
from vcbench.lossless.outcome import Finding, Outcome
from vcbench.lossless.thresholds import Threshold, needed
from vcbench.metrics.interval import paired_margin, samples_to_decide
from vcbench.records.reader import CellInfo, Run

DEFAULT = ("acceptance", "speedup", "kl")
"""What is compared where `--fail-on` names no measure."""
TOLERANCE = 0.05
HARDWARE = (("hardware", "cpu"), ("hardware", "gpus"), ("decoding_threads",))


def compare_with_baseline(
    run: Run, baseline: Run, thresholds: Sequence[Threshold], *, tolerance: float = TOLERANCE
) -> list[Finding]:
    """Fails where a measure is worse than the baseline's by more than `tolerance`, a share of the baseline's value."""
    if not 0 <= tolerance < 1:
        raise UsageError(f"--tolerance is {tolerance:g}; give a share of the baseline's value, 0 or more and below 1")
    if run.path.resolve() == baseline.path.resolve():
        raise UsageError(f"--baseline {baseline.path} is the run itself; it cannot be worse than itself")
    names = [threshold.metric for threshold in thresholds if threshold.metric in MEASURES] or DEFAULT
    findings = []
    for task in run.tasks:
        if changed := _other_settings(run, baseline, task):
            findings.append(_finding("baseline", task, "inconclusive", f"other settings than the baseline: {changed}"))
            continue
        for cell in (cell for cell in run.cells if cell.arm != "full" and cell.answers(task)):
            findings += list(_cell(run, baseline, cell, task, names, tolerance))
    return findings or [_finding("baseline", "", "inconclusive", "the run has no cell to compare")]


def _cell(
    run: Run, baseline: Run, cell: CellInfo, task: str, names: Sequence[str], tolerance: float
) -> Iterator[Finding]:
    shown = f"{cell.label} ({task})"
    then = next((other for other in baseline.cells if other.label == cell.label and other.answers(task)), None)
    for name in names:
        measure = MEASURES[name]
        every = measure.samples(run, cell, task)
        if not every:
            continue
        ours = _same_prompts(run, baseline, task, every)
        rule = f"{name} against baseline"
        theirs = measure.samples(baseline, then, task) if then is not None else {}
        common = [key for key in ours if key in theirs]
        if not common:
            yield _finding(rule, shown, "inconclusive", "the baseline has no such cell with these requests")
        elif measure.timed and (other := _other_hardware(run, baseline)):
            yield _finding(rule, shown, "inconclusive", f"the baseline ran on other hardware ({other})")
        else:
            yield _paired(rule, shown, measure, [(ours[key], theirs[key]) for key in common], tolerance)


def _paired(
    rule: str,
    cell: str,
    measure: Measure,
    pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    tolerance: float,
) -> Finding:
    """Decides by the interval of the margin: how much better than the worst value that is tolerated."""
    sign = 1.0 if measure.higher_is_better else -1.0
    found = paired_margin([ours for ours, _ in pairs], [old for _, old in pairs], sign=sign, tolerance=tolerance)
    if found is None:
        return _finding(rule, cell, "inconclusive", "nothing was measured")
    now, before, margin = found
    outcome: Outcome = "inconclusive"
    if margin.low is not None and margin.high is not None:
        outcome = "pass" if margin.low >= 0 else "fail" if margin.high < 0 else "inconclusive"
    change = f" ({100 * (now / before - 1):+.1f} %)" if before else ""
    detail = f"{now:.4g} now, {before:.4g} then{change}, {len(pairs)} pairs, {100 * tolerance:g} % tolerated"
    more = None
    if outcome == "inconclusive":
        more = samples_to_decide(len(pairs), margin.value, margin.half_width)
        detail += f"; {needed(more)}"
    return Finding(
        rule=rule, cell=cell, outcome=outcome, detail=detail, value=now, low=margin.low, high=margin.high,
        n=len(pairs), more=more,
    )  # fmt: skip


def _same_prompts(run: Run, baseline: Run, task: str, samples: Samples) -> Samples:
    """The samples whose requests are the same prompts in both runs."""

    def same(request: str) -> bool:
        ours, theirs = run.prompts.get((task, request)), baseline.prompts.get((task, request))
        return ours is None or (theirs is not None and ours.prompt_sha256 == theirs.prompt_sha256)

    return {key: sample for key, sample in samples.items() if all(same(request) for request in [key, *key.split(", ")])}


def _other_settings(run: Run, baseline: Run, task: str) -> str:
    ours, theirs = settings_of_run(run, task), settings_of_run(baseline, task)
    return ", ".join(key for key in SETTINGS if key in ours and key in theirs and ours[key] != theirs[key])


def _other_hardware(run: Run, baseline: Run) -> str:
    return ", ".join(".".join(path) for path in HARDWARE if _fact(run, path) != _fact(baseline, path))


def _fact(run: Run, path: Sequence[str]) -> object:
    value: object = run.provenance
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _finding(rule: str, cell: str, outcome: Outcome, detail: str) -> Finding:
    return Finding(rule=rule, cell=cell, outcome=outcome, detail=detail)
