"""What is measured of a VeriCache cell: exactly 0 where every logit is full KV's, and what a broken one really did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from vcbench.config.schema import CellConfig, MetricsConfig, RunConfig
from vcbench.engine.decoding.progress import Progress
from vcbench.forensics.faulty import Engine
from vcbench.forensics.tiny import tiny_config
from vcbench.metrics.text import first_divergence
from vcbench.records.reader import CellInfo, Run, load_run
from vcbench.runners.run import execute

CELLS = (
    CellConfig(arm="full"),
    CellConfig(arm="lossy", method="snapkv-2x"),
    CellConfig(arm="vericache", method="snapkv-2x", draft_length=5),
)
TOKENS = 16


@pytest.fixture
def config(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    made = tiny_config("tiny", requests=3, batch_size=2, cells=CELLS)
    task = replace(made.tasks[0], max_tokens=TOKENS)
    return replace(made, output_dir=str(tmp_path / "runs"), tasks=(task,), metrics=MetricsConfig(divergence=True))


def arm(run: Run, name: str) -> CellInfo:
    return next(cell for cell in run.cells if cell.arm == name)


def test_equal_hashes_of_all_logits_are_a_measured_zero(config: RunConfig) -> None:
    run = load_run(execute(config, console=Console(quiet=True)))
    for (cell, task, request), line in run.divergences.items():
        steps = len(run.requests[arm(run, "full").id, task, request].token_ids) - 1
        if cell == arm(run, "vericache").id:
            assert (line.basis, line.kl, line.top1_agree) == ("same logits", [0.0] * steps, [True] * steps)
            assert list(line.logprob_full) == []
        else:
            assert line.basis == "teacher-forced"
            assert len(line.kl) == len(line.top5_overlap) == len(line.logprob_method) == steps
            assert sum(value or 0.0 for value in line.kl) > 0
    assert len(run.divergences) == 2 * 3


def test_without_hashes_the_logits_themselves_are_compared(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "logits_sha256", lambda self: "")
    run = load_run(execute(config, console=Console(quiet=True)))
    lines = [line for (cell, _, _), line in run.divergences.items() if cell == arm(run, "vericache").id]
    assert len(lines) == 3
    for line in lines:
        steps = len(run.requests[arm(run, "full").id, line.task, line.request].token_ids) - 1
        assert line.basis == "verify logits"
        assert line.kl == [0.0] * steps
        assert line.logprob_full == line.logprob_method
        assert len(line.logprob_full) == steps


def test_a_broken_verification_is_measured_up_to_its_fork(config: RunConfig) -> None:
    fault = "compressed_cache_in_verify"
    run = load_run(execute(config, console=Console(quiet=True), engine=Engine(fault), fault=fault))
    full, veri = arm(run, "full").id, arm(run, "vericache").id
    positive = 0
    for (cell, task, request), line in run.divergences.items():
        if cell != veri:
            continue
        reference, ours = run.requests[full, task, request], run.requests[veri, task, request]
        fork = first_divergence(reference.token_ids, ours.token_ids)
        assert line.basis == "verify logits"
        known = [value for value in line.kl if value is not None]
        if fork is not None:
            # Step i chose token i + 1: the fork's own step is the last that both came to by the same tokens.
            assert len(known) == min(fork, len(reference.token_ids) - 1)
            assert line.kl[len(known) :] == [None] * (len(reference.token_ids) - 1 - len(known))
            assert line.top1_agree[len(known) - 1] is False
        positive += sum(known) > 0
    assert positive


def test_an_answer_that_was_never_given_is_not_measured(config: RunConfig) -> None:
    fault = "drop_last_request"
    run = load_run(execute(config, console=Console(quiet=True), engine=Engine(fault), fault=fault))
    veri = arm(run, "vericache").id
    assert {key for key in run.divergences if key[0] == veri} == {key for key in run.requests if key[0] == veri}


@pytest.fixture
def endless(config: RunConfig) -> RunConfig:
    return replace(config, tasks=(replace(config.tasks[0], ignore_eos=True),))


def test_a_stop_string_stays_in_the_text(endless: RunConfig) -> None:
    first = load_run(execute(endless, console=Console(quiet=True)))
    (line, *_) = first.requests.values()
    word = line.text.split()[4]
    stop = replace(endless.tasks[0], stop=(word,))
    second = load_run(execute(replace(endless, name="stop", tasks=(stop,)), console=Console(quiet=True)))
    cut = second.requests[arm(second, "full").id, line.task, line.request]
    assert cut.finish_reason == "stop"
    assert cut.text.rstrip().endswith(word)


def test_a_stop_id_is_the_last_id_and_no_text(endless: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from vcbench.runners.setup import Workbench

    first = load_run(execute(endless, console=Console(quiet=True)))
    (line, *_) = first.requests.values()
    stop, given = line.token_ids[4], Workbench.request

    def stopping(self: Workbench, *words: object) -> object:
        return replace(given(self, *words), stop_ids=frozenset({stop}))  # type: ignore[arg-type]

    monkeypatch.setattr(Workbench, "request", stopping)
    second = load_run(execute(replace(endless, name="stop"), console=Console(quiet=True)))
    cut = second.requests[arm(second, "full").id, line.task, line.request]
    at = line.token_ids.index(stop)
    assert (cut.finish_reason, cut.token_ids) == ("stop", line.token_ids[: at + 1])
    assert cut.text.split() == line.text.split()[:at]
