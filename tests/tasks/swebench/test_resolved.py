"""swebench's own verdicts: on real logs as their reports say, and why there is none where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real_data import real
from vcbench.tasks.swebench import resolved
from vcbench.tasks.swebench.resolved import Prediction, Verdict, eval_report, grade_log, obstacle, undecidable

pytest.importorskip("swebench", reason="the extra `swebench` is not installed")

INSTANCE = {
    "repo": "owner/project",
    "version": "1.0",
    "image": "none",
    "eval_script": "#!/bin/bash\n",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "FAIL_TO_PASS": '["t.py::new"]',
    "PASS_TO_PASS": '["t.py::old"]',
}
PATCH = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


def prediction(patch: str = PATCH, **changes: Any) -> Prediction:
    return Prediction(id="owner__project-1", patch=patch, instance=INSTANCE | changes)


def log(directory: Path, new: str = "PASSED", old: str = "PASSED") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [">>>>> Start Test Output", f"{new} t.py::new", f"{old} t.py::old", ">>>>> End Test Output"]
    (directory / "test_output.txt").write_text("\n".join(lines) + "\n")
    return directory


@pytest.mark.parametrize("model", ["gold", "empty"])
def test_real_logs_grade_as_their_reports_say(model: str) -> None:
    logs = real(f"swebench/exec_logs/{model}")
    rows = real("swebench/lite_instances_sample.jsonl").read_text().splitlines()
    instances = {row["instance_id"]: row for row in map(json.loads, rows)}
    summary = json.loads((logs.parent / f"{model}.local.json").read_text())
    seen = []
    for directory in sorted(logs.iterdir()):
        instance = instances[directory.name]
        patch = instance["patch"] if model == "gold" else ""
        each = Prediction(id=directory.name, patch=patch, instance=instance)
        stored = json.loads((directory / "report.json").read_text())[directory.name]
        assert eval_report(each, directory / "test_output.txt") == stored
        assert grade_log(each, directory) == Verdict(directory.name in summary["resolved_ids"])
        seen.append(directory.name)
    assert sorted(seen) == sorted(summary["completed_ids"])


def test_logs(tmp_path: Path) -> None:
    assert grade_log(prediction(), log(tmp_path / "a")) == Verdict(True)
    assert grade_log(prediction(), log(tmp_path / "b", new="FAILED")) == Verdict(False)
    assert grade_log(prediction(), log(tmp_path / "c", old="FAILED")) == Verdict(False)
    (tmp_path / "c" / "test_output.txt").write_text("killed before any test")
    assert grade_log(prediction(), tmp_path / "c").resolved is not True
    assert grade_log(prediction(), tmp_path / "nowhere") == Verdict(None, f"no log {tmp_path}/nowhere/test_output.txt")


def test_what_swebench_cannot_grade_costs_no_other_verdict(tmp_path: Path) -> None:
    verdict = grade_log(prediction(log_parser="parse_log_of_nobody"), log(tmp_path / "a"))
    assert verdict.resolved is None
    assert verdict.reason.startswith(f"swebench cannot grade {tmp_path}/a/test_output.txt: ")
    (tmp_path / "a" / "test_output.txt").write_bytes(b"\xff\xfe")
    assert grade_log(prediction(), tmp_path / "a").resolved is not True
    (tmp_path / "a" / "patch.diff").write_bytes(b"\xff\xfe")
    assert "is of another patch" in grade_log(prediction(), tmp_path / "a").reason


def test_a_log_of_another_patch_is_not_taken(tmp_path: Path) -> None:
    directory = log(tmp_path / "a")
    (directory / "patch.diff").write_text(PATCH.rstrip())
    assert grade_log(prediction(), directory) == Verdict(True)
    (directory / "patch.diff").write_text("another")
    assert grade_log(prediction(), directory) == Verdict(None, f"the log in {directory} is of another patch")


def test_what_needs_no_tests() -> None:
    assert undecidable(prediction()) is None
    assert undecidable(prediction(patch="")) == Verdict(False, "no patch")
    assert undecidable(prediction(FAIL_TO_PASS=["t.py::new"], PASS_TO_PASS=[])) is None, (
        "lists, as other files have them"
    )
    without = undecidable(prediction(image=None, eval_script=""))
    assert without == Verdict(None, "the instance has no image, eval_script, which swebench 5 needs")


def test_no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    assert "Docker does not answer (" in obstacle("docker")


def test_no_modal_and_no_swebench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MODAL_TOKEN_ID", raising=False)
    assert "modal setup" in obstacle("modal")
    monkeypatch.setenv("MODAL_TOKEN_ID", "x")
    assert obstacle("modal") == ""
    monkeypatch.setattr(resolved, "version", lambda name: "4.1.0")
    assert obstacle("modal") == "swebench 4.1.0 is installed, but 5.x is needed"

    def missing(name: str) -> str:
        raise resolved.PackageNotFoundError

    monkeypatch.setattr(resolved, "version", missing)
    assert "pip install 'vcbench[swebench]'" in obstacle("docker")


HARNESS = """#!{python}
import json, pathlib, sys
options = dict(zip(sys.argv[3::2], sys.argv[4::2]))
rows = [json.loads(line) for line in open(options["--dataset_name"])]
assert all(row["instance_id"] and row["eval_script"] for row in rows)
for line in open(options["--predictions_path"]):
    each = json.loads(line)
    if each["instance_id"].endswith("-lost"):
        continue
    place = pathlib.Path("logs/run_evaluation", options["--run_id"], each["model_name_or_path"], each["instance_id"])
    place.mkdir(parents=True)
    report = {{"resolved": "+b" in each["model_patch"], "infra_failure": each["instance_id"].endswith("-infra")}}
    (place / "report.json").write_text(json.dumps({{each["instance_id"]: report}}))
print("not for the data on stdout")
sys.exit(3)
"""


def test_the_harness_is_run_and_its_reports_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import sys

    fake = tmp_path / "python"
    fake.write_text(HARNESS.format(python=sys.executable))
    fake.chmod(0o755)
    monkeypatch.setattr(resolved.sys, "executable", str(fake))
    each = [
        Prediction(id="a-1", patch=PATCH, instance=INSTANCE),
        Prediction(id="a-2", patch=PATCH.replace("+b", "+c"), instance=INSTANCE),
        Prediction(id="a-infra", patch=PATCH, instance=INSTANCE),
        Prediction(id="a-lost", patch=PATCH, instance=INSTANCE),
    ]
    verdicts = resolved.run_harness(each, "full", tmp_path / "out", "docker")
    assert (verdicts["a-1"], verdicts["a-2"]) == (Verdict(True), Verdict(False))
    assert verdicts["a-infra"].resolved is None
    assert "its environment failed" in verdicts["a-infra"].reason
    assert verdicts["a-lost"].resolved is None
    assert "no report" in verdicts["a-lost"].reason
    assert "the harness ended with 3" in verdicts["a-lost"].reason
    assert capfd.readouterr().out == ""
