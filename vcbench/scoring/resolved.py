"""`resolved` of SWE-bench patches: verdicts that need tests, kept beside a run's records and read as metrics.

They lie in `resolved.json`, by the patch that they are of, so that equal patches of several arms are tested once and a
verdict on a patch that is no longer the answer's is not taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vcbench.errors import UsageError
from vcbench.records.files import explained, json_bytes, read_json, replace_file
from vcbench.records.reader import CellInfo, Run
from vcbench.scoring.answers import answer, answered, question
from vcbench.scoring.sources import Outcomes, Source
from vcbench.tasks.base import Metric
from vcbench.tasks.swebench.resolved import (
    Backend,
    Prediction,
    Verdict,
    grade_log,
    obstacle,
    run_harness,
    unavailable,
    undecidable,
)
from vcbench.tasks.swebench_lite import NAME, model_name, prediction

RESOLVED = "resolved.json"
HOW = "vcbench score RUN --harness docker (or modal), or --exec-logs DIR for logs of the tests"
Verdicts = dict[str, Verdict]
"""By `_key` of instance and patch."""


class ResolvedSource(Source):
    """What `grade_run` found out; without it, how to find out."""

    name = "resolved"
    title = "tests of SWE-bench"
    metrics: tuple[Metric, ...] = (
        Metric(name="resolved", summary="all tests that must pass do, by swebench itself", headline=True),
    )

    def __init__(self, run: Run) -> None:
        self.verdicts = read_verdicts(run)
        if not self.verdicts:
            self.metrics = ()
            self.missing = f"resolved: n/a, as no tests were run; {HOW}"
            return
        unknown = [verdict.reason for verdict in self.verdicts.values() if verdict.resolved is None]
        if unknown:
            self.missing = f"resolved: {len(unknown)} patches without a verdict; the first: {unknown[0]}"

    def outcomes(self, run: Run, cell: CellInfo, task: str) -> Outcomes:
        """The verdicts on the cell's patches; None where there is none."""
        if not self.metrics:
            return {}
        verdicts = {each.id: self.verdicts.get(_key(each)) for each in predictions(run, cell)}
        return {"resolved": {name: verdict.resolved if verdict else None for name, verdict in verdicts.items()}}


def grade_run(run: Run, *, backend: Backend | None = None, logs: Path | None = None) -> list[str]:
    """Finds the verdicts on all patches of a run, writes `resolved.json` and says what could not be told, and why.

    `logs`: a directory with `MODEL/INSTANCE/test_output.txt`, as `logs/run_evaluation/RUN_ID` of swebench is; MODEL is
    the cell's name as `--export` writes it. Raises UsageError where the run has no such task or `logs` is none.
    """
    if NAME not in run.tasks:
        raise UsageError(f"{run.path} has no task {NAME!r}, whose patches could be tested")
    if logs is not None and not logs.is_dir():
        raise UsageError(f"{logs} is not a directory of logs (MODEL/INSTANCE/test_output.txt)")
    if reason := obstacle(backend) if backend else unavailable():
        return [f"resolved: n/a: {reason}"]
    found: Verdicts = {}
    for cell in (cell for cell in run.cells if cell.answers(NAME)):
        model = model_name(cell.label)
        new = [each for each in predictions(run, cell) if not _settled(found.get(_key(each)))]
        open_ones = []
        for each in new:
            verdict = undecidable(each)
            if verdict is None and logs is not None:
                verdict = grade_log(each, logs / model / each.id)
            if verdict is None:
                open_ones.append(each)
            else:
                found[_key(each)] = verdict
        if open_ones and backend is not None:
            tested = run_harness(open_ones, model, run.path / "swebench", backend)
            found |= {_key(each): tested[each.id] for each in open_ones}
    write_verdicts(run, found)
    reasons = [verdict.reason for verdict in found.values() if verdict.resolved is None]
    return [f"resolved: no verdict on {reasons.count(reason)} patches: {reason}" for reason in dict.fromkeys(reasons)]


def predictions(run: Run, cell: CellInfo) -> Iterator[Prediction]:
    """The cell's answers as predictions."""
    for request, line in answered(run, cell, NAME).items():
        asked = question(run.prompts[NAME, request])
        patch = prediction(cell.label, asked, answer(run, line))["model_patch"]
        yield Prediction(id=request, patch=patch, instance={**asked.meta["instance"], "patch": asked.target["patch"]})


def read_verdicts(run: Run) -> Verdicts:
    """The stored verdicts; none if there is no file. Raises RecordError where it cannot be read."""
    path = run.path / RESOLVED
    if not path.is_file():
        return {}
    stored: dict[str, dict[str, Any]] = read_json(path)
    return {key: Verdict(entry.get("resolved"), str(entry.get("reason", ""))) for key, entry in stored.items()}


def write_verdicts(run: Run, verdicts: Verdicts) -> None:
    """Writes `resolved.json` whole; verdicts of an earlier grading stay where there is no newer one."""
    merged = read_verdicts(run)
    merged |= {key: verdict for key, verdict in verdicts.items() if verdict.resolved is not None or key not in merged}
    path = run.path / RESOLVED
    with explained(path, "write"):
        replace_file(
            path, json_bytes({key: {"resolved": each.resolved, "reason": each.reason} for key, each in merged.items()})
        )


def _key(prediction: Prediction) -> str:
    return f"{prediction.id} {hashlib.sha256(prediction.patch.encode()).hexdigest()}"


def _settled(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.resolved is not None
