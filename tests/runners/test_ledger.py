"""The ledger: what is on disk and what it says are one, whichever process wrote the lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vcbench.errors import RecordError
from vcbench.records.schema import BatchLine, DivergenceLine, Line, PromptLine, RequestLine, TurnLine
from vcbench.records.store import RunDirectory
from vcbench.runners.ledger import Ledger


def prompt(name: str) -> PromptLine:
    return PromptLine(
        task="t", request=name, prompt_ids=[1, 2], prompt_sha256="p", document_sha256="d", tail=f"end of {name}"
    )


def answer(cell: str, name: str, error: str | None = None) -> RequestLine:
    return RequestLine(
        cell=cell, task="t", request=name, prompt_sha256="p", token_ids=[] if error else [7], text="",
        finish_reason="error" if error else "stop", error=error,
    )  # fmt: skip


LINES: tuple[Line, ...] = (
    prompt("a"),
    answer("full", "a"),
    answer("lossy", "a", "over the limit"),
    BatchLine(cell="full", task="t", requests=["a"], tokens=0),
    DivergenceLine(cell="lossy", task="t", request="a", kl=[0.5], top1_agree=[True]),
    TurnLine(cell="full", task="t", request="a", follow_up="a/t2"),
    prompt("a/t2"),
    answer("full", "a/t2"),
)


def state(ledger: Ledger) -> dict[str, object]:
    return {name: value for name, value in vars(ledger).items() if name != "_directory"}


def test_lines_of_an_earlier_process_count_as_this_ones_own(tmp_path: Path) -> None:
    for split in range(len(LINES) + 1):
        path = tmp_path / str(split)
        with RunDirectory.create(path, "", {}) as run:
            ledger = Ledger(run)
            for line in LINES[:split]:
                ledger.append(line)
        with RunDirectory.open(path) as run:
            resumed = Ledger(run)
            assert state(resumed) == state(ledger)
            for line in LINES[split:]:
                resumed.append(line)
            assert state(Ledger(run)) == state(resumed)
            assert run.lines() == list(LINES)

    assert resumed.tails == {("t", "a"): "end of a", ("t", "a/t2"): "end of a/t2"}
    assert set(resumed.answers) == {("full", "t", "a"), ("lossy", "t", "a"), ("full", "t", "a/t2")}
    assert resumed.measured == {("lossy", "t", "a")}
    assert resumed.asked == {("t", "a/t2"): {"full"}}
    assert list(resumed.follow_ups) == [("t", "a/t2")]
    assert resumed.failures() == {("t", "a"): "over the limit"}


def test_a_line_that_was_not_recorded_is_not_entered(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "", {}) as run:
        ledger = Ledger(run)
        ledger.append(answer("full", "a"))
        with pytest.raises(RecordError, match="ids must be unique"):
            ledger.append(replace(answer("full", "a"), token_ids=[8]))

        assert ledger.answers["full", "t", "a"].token_ids == [7]
