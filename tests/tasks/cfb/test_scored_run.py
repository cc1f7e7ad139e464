"""Whole runs of the task, answered from the gold with one slip of the lossy cell, scored and checked from records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.records.samples import FULL, LOSSY, VERI
from tests.records.samples import answer as sample_answer
from tests.tasks.cfb.examples import answer, task
from tests.tasks.tool_calls.templates import HERMES, TemplateTokenizer
from vcbench.lossless.check import check_run
from vcbench.records.reader import CellInfo, Run, load_run
from vcbench.records.schema import PromptLine, TurnLine
from vcbench.records.store import RunDirectory
from vcbench.scoring.scores import Figure, score_task, sources_of
from vcbench.tasks.base import Prompt
from vcbench.tasks.tool_calls.base import ToolCall
from vcbench.tasks.tool_calls.formats import FORMATS

NAME = "complexfuncbench"
CELLS = [{**cell, "task": NAME} for cell in (FULL, VERI, LOSSY)]
SLIP = ("Library-0", "rm_haf_2b", "rm_haf_4a")
"""In this conversation the lossy cell takes the other room."""


def text_for(cell: dict[str, Any], prompt: Prompt, calls: list[ToolCall]) -> str:
    if not calls:
        return "That is all."
    written = FORMATS["hermes"].write(calls)
    slips = cell["arm"] == "lossy" and prompt.meta["group"] == SLIP[0]
    return written.replace(SLIP[1], SLIP[2]) if slips else written


def asked_for(prompt: Prompt) -> list[ToolCall]:
    """The golden calls of the prompt's step or turn; none once all have been made."""
    steps = prompt.target["steps"]
    at = prompt.meta.get("turn", 1) - 1
    return [ToolCall.of(call) for call in steps[at]] if at < len(steps) else []


def play(path: Path, mode: str) -> Run:
    """A run in which every cell gives the golden calls, but for the slip."""
    made, tokenizer = task(mode=mode), TemplateTokenizer(HERMES)
    config = f"name: run\nengine: {{exactness: bitwise}}\ntasks: [{{name: {NAME}, mode: {mode}}}]\n"
    seen: set[str] = set()
    with RunDirectory.create(path / "run", config, {"cells": CELLS}) as run:
        for root in made.prompts(tokenizer, limit=None, seed=0):
            for cell in CELLS:
                prompt: Prompt | None = root
                while prompt is not None:
                    if prompt.id not in seen:
                        run.append(prompt_line(prompt))
                        seen.add(prompt.id)
                    text = text_for(cell, prompt, asked_for(prompt))
                    run.append(request_line(cell, prompt, text))
                    following = made.follow_up(prompt, answer(text), tokenizer)
                    if made.has_follow_ups():
                        name = following.id if following is not None else None
                        run.append(TurnLine(cell=cell["id"], task=NAME, request=prompt.id, follow_up=name))
                    prompt = following
        run.finish()
    return load_run(path / "run")


def prompt_line(prompt: Prompt) -> PromptLine:
    return PromptLine(
        task=NAME,
        request=prompt.id,
        prompt_ids=list(prompt.ids),
        prompt_sha256=prompt.sha256,
        document_sha256=prompt.document_sha256,
        target=json.loads(json.dumps(prompt.target)),
        meta=json.loads(json.dumps(prompt.meta)),
    )


def request_line(cell: dict[str, Any], prompt: Prompt, text: str) -> Any:
    ids = [byte + 2 for byte in text.encode()]
    line = sample_answer(cell, prompt.id)
    rounds: dict[str, Any] = {}
    if cell["arm"] == "vericache":
        committed = [min(4, left) for left in range(len(ids) - 1, 0, -4)]
        rounds = {"drafted": [4] * len(committed), "accepted": [n - 1 for n in committed], "committed": committed}
    return replace(
        line, task=NAME, prompt_sha256=prompt.sha256, token_ids=ids, text=text, finish_reason="stop", **rounds
    )


@pytest.fixture(params=["teacher_forced", "interactive"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return play(tmp_path, request.param)


def figures(run: Run) -> Callable[[str, str], Figure]:
    scores = score_task(run, NAME, sources_of(run, NAME)[:1])
    (section,) = scores.sections
    assert not list(scores.errors())
    metrics = {metric.name: metric for metric in section.metrics}
    cells = {cell.arm: cell for cell in scores.cells}
    return lambda arm, name: scores.figure(section, metrics[name], cells[arm])


def value(figure: Figure) -> float:
    assert figure.estimate is not None
    return figure.estimate.value


def test_one_slip_costs_one_conversation(run: Run) -> None:
    figure = figures(run)
    for arm in ("full", "vericache"):
        for name in ("exact_calls", "success", "call_accuracy", "success_lenient", "well_formed"):
            assert value(figure(arm, name)) == 1
    assert value(figure("vericache", "same_calls")) == 1
    success = figure("lossy", "success")
    assert (success.groups, value(success)) == (7, pytest.approx(6 / 7))
    assert success.difference is not None
    assert success.difference.estimate is not None
    assert success.difference.estimate.value == pytest.approx(-1 / 7)
    assert value(figure("lossy", "call_accuracy")) == pytest.approx(36 / 37)
    assert value(figure("lossy", "same_calls")) < 1
    assert value(figure("lossy", "value_error")) > 0
    assert figure("full", "same_calls").n == 0


def test_the_gate_passes_and_asks_only_what_was_asked(run: Run) -> None:
    result = check_run(run.path)
    cells: dict[str, CellInfo] = {cell.arm: cell for cell in run.cells}
    assert [cell.cell.arm for cell in result.cells if cell.verdicts] == ["vericache"]
    assert result.identical == result.n == len(run.asked(cells["full"], NAME))
    if run.turns:
        lossy, full = (set(run.asked(cells[arm], NAME)) for arm in ("lossy", "full"))
        assert lossy - full
        assert full - lossy
