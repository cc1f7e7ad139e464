"""Follow-up turns in the gate: what full KV was asked and the cell was not is missing, unless they parted before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.records.samples import FULL, LOSSY, OUTPUT, TASK, VERI, Sample, answer, prompt
from vcbench.lossless.check import check_run
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.result import Verdict
from vcbench.metrics.summary import summarise
from vcbench.records.reader import load_run
from vcbench.records.schema import Line, TurnLine
from vcbench.report.runs import list_runs

NEXT, OTHER = "one-t2", "one-t2b"
FORKED = {"token_ids": [*OUTPUT[:7], 1, 2, 3]}


def turn(cell: dict[str, Any], request: str, follow_up: str | None) -> TurnLine:
    return TurnLine(cell=cell["id"], task=TASK, request=request, follow_up=follow_up)


def run_with(path: Path, lines: list[Line], sample: Sample | None = None) -> Path:
    """A run of four prompts whose first answer is followed up by `lines`."""
    sample = sample or Sample()
    sample.others += lines
    return sample.write(path / "run")


def verdicts(result: CheckResult) -> dict[str, Verdict]:
    return {verdict.request: verdict.verdict for verdict in result.verdicts}


def both(request: str) -> list[Line]:
    return [turn(FULL, "one", request), turn(VERI, "one", request), turn(LOSSY, "one", None), prompt(request)]


def test_a_follow_up_that_both_answered_is_judged(tmp_path: Path) -> None:
    result = check_run(run_with(tmp_path, [*both(NEXT), answer(FULL, NEXT), answer(VERI, NEXT)]))
    assert (result.outcome, result.n) == ("PASS", 5)
    assert verdicts(result)[NEXT] is Verdict.IDENTICAL


@pytest.mark.parametrize("lacks", [FULL, VERI])
def test_a_follow_up_without_an_answer_is_missing(tmp_path: Path, lacks: dict[str, Any]) -> None:
    other = VERI if lacks is FULL else FULL
    result = check_run(run_with(tmp_path, [*both(NEXT), answer(other, NEXT)]))
    assert result.outcome == "FAIL"
    assert verdicts(result)[NEXT] is Verdict.MISSING


def test_a_follow_up_that_the_cell_was_not_asked_is_missing(tmp_path: Path) -> None:
    """Equal answers lead to the same request: a cell that ended there lost something."""
    lines = [turn(FULL, "one", NEXT), turn(VERI, "one", None), prompt(NEXT), answer(FULL, NEXT)]
    assert verdicts(check_run(run_with(tmp_path, lines)))[NEXT] is Verdict.MISSING


def test_where_the_answers_parted_before_only_the_fork_is_judged(tmp_path: Path) -> None:
    lines = [
        turn(FULL, "one", NEXT),
        turn(VERI, "one", OTHER),
        prompt(NEXT),
        prompt(OTHER),
        answer(FULL, NEXT),
        answer(VERI, OTHER),
        turn(FULL, NEXT, "one-t3"),
        prompt("one-t3"),
        answer(FULL, "one-t3"),
    ]
    found = verdicts(check_run(run_with(tmp_path, lines, Sample().change(VERI, "one", **FORKED))))
    assert set(found) == {"one", "two", "three", "four"}
    assert found["one"] is Verdict.VIOLATION


def test_a_follow_up_of_a_lossy_cell_alone_is_missing_nowhere(tmp_path: Path) -> None:
    lines = [turn(LOSSY, "one", NEXT), turn(FULL, "one", None), turn(VERI, "one", None), prompt(NEXT)]
    path = run_with(tmp_path, [*lines, answer(LOSSY, NEXT)])
    result = check_run(path)
    assert (result.outcome, result.n) == ("PASS", 4)
    rows = {row.cell.label: row for row in summarise(load_run(path))}
    assert [(rows[c["label"]].prompts, rows[c["label"]].missing) for c in (FULL, LOSSY, VERI)] == [
        (4, 0),
        (5, 0),
        (4, 0),
    ]
    (entry,) = list_runs(tmp_path)
    assert (entry.answers, entry.expected) == (13, 13)


def test_what_a_run_says_of_its_turns(tmp_path: Path) -> None:
    run = load_run(run_with(tmp_path, [*both(NEXT), answer(FULL, NEXT)]))
    full, lossy, veri = run.cells
    assert run.parents(TASK) == {NEXT: "one"}
    assert run.asked(full, TASK) == run.asked(veri, TASK) == ["one", "two", "three", "four", NEXT]
    assert run.asked(lossy, TASK) == ["one", "two", "three", "four"]
    assert run.asked(replace(full, id="unknown"), TASK) == ["one", "two", "three", "four"]
