"""`--fail-on TASK.METRIC` on scored runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scoring.scored_task import TASK, registered, sample, write
from vcbench import registry
from vcbench.config.options import build_options
from vcbench.errors import UsageError
from vcbench.lossless.check import check_loaded
from vcbench.lossless.outcome import Finding
from vcbench.lossless.thresholds import evaluate, parse_fail_on
from vcbench.records.reader import load_run
from vcbench.scoring.resolved import ResolvedSource
from vcbench.scoring.texts import common_sources


@pytest.fixture(autouse=True)
def _task() -> Iterator[None]:
    with registered():
        yield


def findings(rules: str, path: Path) -> dict[str, Finding]:
    texts = {"full": ["a b"] * 20, "lossy": ["a b", *["x"] * 19], "vericache": ["a b"] * 20}
    run = load_run(write(sample(texts), path))
    return {each.cell: each for each in evaluate(parse_fail_on(rules), check_loaded(run), run)}


def test_scores_are_decided_by_their_interval(tmp_path: Path) -> None:
    found = findings(f"{TASK}.right<0.5", tmp_path / "run")
    lossy, veri = found[f"lossy snapkv ({TASK})"], found[f"vericache snapkv k=4 ({TASK})"]
    assert (lossy.outcome, lossy.value, lossy.n) == ("fail", 0.05, 20)
    assert (veri.outcome, veri.value) == ("pass", 1.0)


def test_common_metrics_can_be_asked_for_too(tmp_path: Path) -> None:
    found = findings(f"{TASK}.token_f1<0.9", tmp_path / "run")
    assert found[f"vericache snapkv k=4 ({TASK})"].outcome == "pass"
    assert found[f"lossy snapkv ({TASK})"].outcome == "fail"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in registry.names("task")),
        ("longform", {"benchmark": "longbench-write"}),
        ("longform", {"benchmark": "longproc"}),
    ],
)
def test_a_name_means_one_metric_of_a_task(name: str, options: dict[str, str]) -> None:
    """`TASK.METRIC` does not say whose metric it is, the task's own or one that any task has."""
    task = registry.lookup("task", name)(build_options("task", name, options))
    common = [metric.name for source in common_sources() for metric in source.metrics]
    names = [*(metric.name for metric in (*task.metrics, *ResolvedSource.metrics)), *common]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("other.right<1", "the run has no task 'other'; it has scored-by-test"),
        (f"{TASK}.rihgt<1", "has no metric 'rihgt'; did you mean 'right'"),
        (f"{TASK}.right>0.5", "would fail a run for being better; write scored-by-test.right<"),
        (f"{TASK}.right<x", "is not a finite number"),
    ],
)
def test_wrong_rules(rule: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        findings(rule, tmp_path / "run")
