"""Scoring from records alone: faults of metrics lose nothing, stored scores are used only while they are current."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.records.samples import LOSSY
from tests.scoring.scored_task import TASK, registered, sample, write
from vcbench.metrics.interval import pooled
from vcbench.records.reader import Run, load_run
from vcbench.scoring import document
from vcbench.scoring.document import read_scores, score_and_write, score_run, scored, write_scores
from vcbench.scoring.paired import Verdict
from vcbench.scoring.scores import Figure, Scores, by_key
from vcbench.scoring.values import Failure, Outcome, checked, from_json, samples, to_json
from vcbench.tasks.base import Metric, Ratio

TEXTS = {"full": ["a b", "a b", "a", "explode"], "lossy": ["a b", "b", "explode", "x"], "vericache": ["a b"] * 4}


@pytest.fixture(autouse=True)
def _task() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(write(sample(TEXTS), tmp_path / "run"))


def figure(scores: Scores, metric: str, arm: str, only: frozenset[str] | None = None) -> Figure:
    (task,) = scores.tasks
    cell = next(cell for cell in task.cells if cell.arm == arm)
    section, found = next((s, m) for s in task.sections for m in s.metrics if m.name == metric)
    return task.figure(section, found, cell, only)


def test_values_counts_and_differences(run: Run) -> None:
    scores = score_run(run)
    full, lossy = figure(scores, "right", "full"), figure(scores, "right", "lossy")
    assert (full.n, full.errors, full.not_applicable) == (3, 1, 0)
    assert full.estimate is not None
    assert full.estimate.value == pytest.approx(2 / 3)
    assert (lossy.n, lossy.errors) == (3, 1)
    # Paired where both have a value: q0 and q1.
    assert lossy.difference is not None
    assert (lossy.difference.n, lossy.difference.to_wrong, lossy.difference.to_right) == (2, 1, 0)
    calls = figure(scores, "calls", "lossy").estimate
    assert calls is not None
    assert calls.value == pytest.approx(3 / 6)
    assert figure(scores, "same", "full").not_applicable == 3
    assert figure(scores, "length", "full").difference is None


def test_a_metric_that_raises_is_named_and_loses_no_answer(run: Run) -> None:
    scores = score_run(run)
    (task,) = scores.tasks
    found = [(cell.arm, metric, request, reason) for cell, metric, request, reason in task.errors()]
    assert ("lossy", "right", "q2", "ZeroDivisionError: a metric with a fault") in found
    assert scores.errors() == len(found) == 8
    assert set(task.sections[0].outcomes[LOSSY["id"]]["right"]) == {"q0", "q1", "q2", "q3"}


def test_old_records_without_meta_say_what_to_do(tmp_path: Path) -> None:
    made = sample(TEXTS)
    made.prompts = [replace(line, meta={}) for line in made.prompts]
    (task,) = score_run(load_run(write(made, tmp_path / "old"))).tasks
    reasons = {reason for _, _, request, reason in task.errors() if request == "q0"}
    assert reasons == {
        "the records hold no 'words' for this prompt: an earlier vcbench made them; run the task again to score it"
    }


def test_a_task_that_is_not_installed_is_said_and_the_rest_is_scored(tmp_path: Path) -> None:
    made = sample(TEXTS)
    path = write(made, tmp_path / "run")
    from vcbench import registry

    kept = registry._entries.pop(("task", TASK))
    try:
        (task,) = score_run(load_run(path)).tasks
    finally:
        registry._entries["task", TASK] = kept
    assert task.sections[0].metrics == ()
    assert "unknown task" in task.sections[0].missing


def test_stored_scores_are_those_of_the_records_and_this_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_scores(run) is None
    scores = score_and_write(load_run(run.path))
    again = read_scores(load_run(run.path))
    assert again is not None
    assert document.as_dict(run, again) == document.as_dict(run, scores)
    assert json.loads((run.path / "scores.json").read_text())["records_sha256"] == run.sha256

    monkeypatch.setattr(document, "identity_of", lambda run: "other code")
    assert read_scores(run) is None
    assert scored(run).code_sha256 == "other code"


def test_scores_of_other_records_or_damaged_ones_are_computed_anew(run: Run) -> None:
    write_scores(run, score_run(run))
    changed = replace(run, sha256="0" * 64)
    assert read_scores(changed) is None
    for text in ("", "{", "[]", '{"schema": 1}', "{}"):
        (run.path / "scores.json").write_text(text)
        assert read_scores(run) is None
    assert scored(run).errors() == 8


def test_nothing_but_scores_json_is_written(run: Run) -> None:
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    score_and_write(load_run(run.path))
    after = {path.name: path.read_bytes() for path in run.path.iterdir()}
    assert after.keys() - before.keys() == {"scores.json"}
    assert all(after[name] == content for name, content in before.items())


def test_the_text_of_old_records_loses_its_stop_token(tmp_path: Path) -> None:
    made = sample({"full": ["a b<|im_end|>", "a b</s>", "a b<|im_end|>"]})
    made.requests = [
        replace(line, schema=1, finish_reason="length" if line.request == "q2" else "stop") for line in made.requests
    ]
    (task,) = score_run(load_run(write(made, tmp_path / "old"))).tasks
    assert task.sections[0].outcomes["f0"]["right"] == {"q0": True, "q1": True, "q2": False}


def test_groups_are_resampled_together(tmp_path: Path) -> None:
    """Three conversations of two turns: n counts answers, the interval and the pairs count conversations."""
    texts = {"full": ["a b"] * 6, "lossy": ["a b", "x", "a b", "a b", "x", "x"]}
    made = sample(texts, meta=[{"group": f"talk {i // 2}"} for i in range(6)])
    scores = score_run(load_run(write(made, tmp_path / "run")))
    lossy = figure(scores, "right", "lossy")
    assert (lossy.n, lossy.groups) == (6, 3)
    assert lossy.difference is not None
    assert (lossy.difference.n, lossy.difference.changed) == (3, 2)
    assert lossy.difference.estimate is not None
    assert lossy.difference.estimate.value == pytest.approx(-0.5)


def test_requests_apart_by_a_key_of_meta(tmp_path: Path) -> None:
    texts = {"full": ["a b", "x", "a b", "x"]}
    made = sample(texts, meta=[{"position": p} for p in (1.0, 0.5, 0.0, 0.5)])
    run = load_run(write(made, tmp_path / "run"))
    parts = by_key(run, TASK, "position")
    assert list(parts) == ["0", "0.5", "1"]
    scores = score_run(run)
    assert [figure(scores, "right", "full", only).n for only in parts.values()] == [1, 2, 1]
    middle = figure(scores, "right", "full", parts["0.5"]).estimate
    assert middle is not None
    assert middle.value == 0.0
    assert by_key(run, TASK, "depth") == {}


@pytest.mark.parametrize(
    ("kind", "value", "outcome"),
    [
        ("share", True, True),
        ("share", np.bool_(False), False),
        ("mean", np.float64(0.5), 0.5),
        ("mean", 2, 2.0),
        ("mean", True, 1.0),
        ("ratio", Ratio(1, 2), Ratio(1.0, 2.0)),
        ("share", None, None),
    ],
)
def test_good_values(kind: str, value: object, outcome: Outcome) -> None:
    found = checked(Metric(name="m", summary="", kind=kind), value)  # type: ignore[arg-type]
    assert found == outcome
    assert type(found) is type(outcome)
    assert from_json(json.loads(json.dumps(to_json(found)))) == outcome


@pytest.mark.parametrize(
    ("kind", "value"),
    [("share", 1.0), ("share", "yes"), ("mean", float("nan")), ("mean", "x"), ("ratio", 0.5), ("ratio", Ratio(1, -1))],
)
def test_values_of_another_kind_are_failures(kind: str, value: object) -> None:
    found = checked(Metric(name="m", summary="", kind=kind), value)  # type: ignore[arg-type]
    assert isinstance(found, Failure)
    assert "where a" in found.message
    assert from_json(to_json(found)) == found


def test_few_answers_that_agree_still_have_an_interval() -> None:
    metric = Metric(name="m", summary="")
    none = pooled(metric.kind, [(0.0, 1.0)] * 4)
    assert none is not None
    assert none.high == pytest.approx(0.6024, abs=1e-4)
    together = pooled(metric.kind, [(2.0, 2.0), (3.0, 3.0)])
    assert together is not None
    assert together.low == pytest.approx(0.1581, abs=1e-4)


def test_a_group_succeeds_only_if_all_of_it_does() -> None:
    metric = Metric(name="success", summary="", of="group")
    groups = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c", "c2": "c", "d1": "d"}
    outcomes: dict[str, Outcome] = {"a1": True, "a2": True, "b1": True, "b2": False, "c1": True, "d1": None}
    found = samples(metric, outcomes, groups, list(groups))
    assert found == {"a": (1.0, 1.0), "b": (0.0, 1.0)}


def test_a_run_of_one_arm_has_no_difference(tmp_path: Path) -> None:
    scores = score_run(load_run(write(sample({"full": ["a b"]}), tmp_path / "run")))
    only = figure(scores, "right", "full")
    assert only.difference is None
    assert only.estimate is not None
    assert only.n == 1


def test_vericache_that_is_right_where_full_is(run: Run) -> None:
    found = figure(score_run(run), "right", "vericache").difference
    assert found is not None
    assert found.verdict is Verdict.TOO_FEW
