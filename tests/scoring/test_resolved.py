"""`resolved` of a run: equal patches tested once, verdicts kept by patch, and n/a said plainly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.records.samples import FULL, LOSSY, VERI, Sample
from tests.tasks.swebench.patches import FILES, PATCH, PROSE, WRONG_LINES
from tests.tasks.swebench.test_resolved import INSTANCE, log
from vcbench.cli.main import app
from vcbench.errors import UsageError
from vcbench.records.reader import Run, load_run
from vcbench.scoring import resolved
from vcbench.scoring.document import score_run
from vcbench.scoring.resolved import RESOLVED, grade_run
from vcbench.scoring.scores import Section
from vcbench.tasks.swebench.resolved import Prediction, Verdict

NAMES = ("owner__project-1", "owner__project-2")
ANSWERS = {"full": [PATCH, PATCH], "lossy": [WRONG_LINES, PROSE], "vericache": [PATCH, PATCH]}


def write(path: Path, task: str = "swebench-lite") -> Run:
    cells = {cell["arm"]: cell | {"task": task} for cell in (FULL, LOSSY, VERI)}
    made = Sample(cells=list(cells.values()), names=NAMES)
    made.others = []
    target = {"patch": PATCH, "files": FILES}
    made.prompts = [replace(line, task=task, target=target, meta={"instance": INSTANCE}) for line in made.prompts]
    arms = {cell["id"]: arm for arm, cell in cells.items()}
    made.requests = [
        replace(line, task=task, text=ANSWERS[arms[line.cell]][NAMES.index(line.request)]) for line in made.requests
    ]
    made.write(path)
    config = path / "config.yaml"
    config.write_text(f"{config.read_text()}tasks:\n- name: {task}\n  max_tokens: 8\n")
    return load_run(path)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write(tmp_path / "run")


def section(run: Run) -> Section:
    (task,) = score_run(run).tasks
    return next(each for each in task.sections if each.source == "resolved")


def outcomes(run: Run) -> dict[str, list[object]]:
    found = section(run).outcomes
    return {cell.arm: [found[cell.id]["resolved"][name] for name in NAMES] for cell in run.cells}


def test_without_tests_it_is_not_available(run: Run) -> None:
    found = section(run)
    assert found.metrics == ()
    assert found.missing.startswith("resolved: n/a, as no tests were run; vcbench score RUN --harness docker")


def test_logs_of_two_models(run: Run, tmp_path: Path) -> None:
    for name, new in zip(NAMES, ("PASSED", "FAILED"), strict=True):
        log(tmp_path / "logs" / "full" / name, new=new)
    log(tmp_path / "logs" / "lossy-snapkv" / NAMES[0], old="FAILED")
    said = grade_run(run, logs=tmp_path / "logs")
    assert said == []
    assert outcomes(run) == {"full": [True, False], "lossy": [False, False], "vericache": [True, False]}


def test_missing_logs_are_said_and_leave_no_value(run: Run, tmp_path: Path) -> None:
    log(tmp_path / "logs" / "vericache-snapkv-k-4" / NAMES[0])
    said = grade_run(run, logs=tmp_path / "logs")
    assert any(line.startswith("resolved: no verdict on 1 patches: no log ") for line in said)
    assert outcomes(run) == {"full": [True, None], "lossy": [None, False], "vericache": [True, None]}
    assert "without a verdict; the first: no log" in section(run).missing


def test_the_harness_tests_each_patch_once_and_verdicts_stay(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[tuple[str, list[str]]] = []

    def harness(each: Sequence[Prediction], model: str, directory: Path, backend: str) -> dict[str, Verdict]:
        tested.append((model, [one.id for one in each]))
        assert directory == run.path / "swebench"
        assert all(one.instance["patch"] == PATCH for one in each), "the gold patch goes with the instance"
        return {one.id: Verdict(one.patch == PATCH) for one in each}

    monkeypatch.setattr(resolved, "obstacle", lambda backend: "")
    monkeypatch.setattr(resolved, "run_harness", harness)
    assert grade_run(run, backend="docker") == []
    assert tested == [("full", list(NAMES)), ("lossy-snapkv", [NAMES[0]])]
    expected = {"full": [True, True], "lossy": [False, False], "vericache": [True, True]}
    assert outcomes(run) == expected
    monkeypatch.setattr(resolved, "run_harness", lambda each, *_: {one.id: Verdict(None, "lost") for one in each})
    grade_run(run, backend="docker")
    assert outcomes(run) == expected, "a failed second attempt takes nothing away"


def test_verdicts_are_of_a_patch(run: Run) -> None:
    entries = {f"{NAMES[0]} {'0' * 64}": {"resolved": True, "reason": ""}}
    (run.path / RESOLVED).write_text(json.dumps(entries))
    assert outcomes(run) == {"full": [None, None], "lossy": [None, None], "vericache": [None, None]}


def test_what_cannot_be_graded(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no task 'swebench-lite'"):
        grade_run(write(tmp_path / "other", task="stdlib"), backend="docker")
    with pytest.raises(UsageError, match="nowhere is not a directory of logs"):
        grade_run(run, logs=tmp_path / "nowhere")


def test_the_command_says_why_not(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    done = CliRunner().invoke(app, ["score", str(run.path), "--harness", "docker"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "resolved: n/a: Docker does not answer (" in done.stderr
    assert "resolved: n/a, as no tests were run" in done.stdout
    log(tmp_path / "logs" / "full" / NAMES[0])
    done = CliRunner().invoke(app, ["score", str(run.path), "--exec-logs", str(tmp_path / "logs")])
    assert done.exit_code == 0
    after = done.stdout[done.stdout.index("\nresolved") :].splitlines()
    assert "100 %" in after[2], after
    with pytest.raises(UsageError, match="choose one of --harness and --exec-logs"):
        CliRunner().invoke(
            app,
            ["score", str(run.path), "--harness", "docker", "--exec-logs", str(tmp_path)],
            catch_exceptions=False,
        )
