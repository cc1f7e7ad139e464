"""Whether a patch resolves its issue: by swebench's own grading of test logs, or by its harness in containers.

Verdicts come from the package `swebench` alone (extra `swebench`); nothing here decides what counts as resolved.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from vcbench.records.output import write_output

COLUMNS = ("image", "eval_script", "log_parser", "eval_type", "FAIL_TO_PASS", "PASS_TO_PASS", "version")
"""What swebench 5 needs of an instance beyond its id; rows of earlier releases have only the last three."""
LOG, PATCH, REPORT = "test_output.txt", "patch.diff", "report.json"
Backend = Literal["docker", "modal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """An answer's patch ("" if it has none) to an instance, whose columns `instance` holds."""

    id: str
    patch: str
    instance: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the instance is resolved; None where it cannot be told, and `reason` says why."""

    resolved: bool | None
    reason: str = ""


def unavailable() -> str:
    """Why swebench cannot be used here; empty if it can."""
    try:
        found = version("swebench")
    except PackageNotFoundError:
        return "the package swebench is not installed: pip install 'vcbench[swebench]'"
    return "" if found.startswith("5.") else f"swebench {found} is installed, but 5.x is needed"


def undecidable(prediction: Prediction) -> Verdict | None:
    """The verdict that needs no test: of an empty patch, and of an instance that swebench cannot grade."""
    missing = [name for name in COLUMNS if prediction.instance.get(name) in (None, "")]
    if missing:
        return Verdict(None, f"the instance has no {', '.join(missing)}, which swebench 5 needs")
    return None if prediction.patch else Verdict(False, "no patch")


def grade_log(prediction: Prediction, directory: Path) -> Verdict:
    """swebench's verdict on the log of an instance's tests, `directory/test_output.txt`.

    A `patch.diff` beside the log, which the harness writes, must be the prediction's.
    """
    log, applied = directory / LOG, directory / PATCH
    if not log.is_file():
        return Verdict(None, f"no log {log}")
    if applied.is_file() and applied.read_bytes().strip() != prediction.patch.strip().encode():
        return Verdict(None, f"the log in {directory} is of another patch")
    try:
        return _verdict(eval_report(prediction, log))
    except Exception as error:  # noqa: BLE001 -- swebench's parsers raise anything, and no other verdict may be lost by it
        return Verdict(None, f"swebench cannot grade {log}: {type(error).__name__}: {error}")


def eval_report(prediction: Prediction, log: Path) -> dict[str, Any]:
    """swebench's own report on a log, with the state of each test."""
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec({**prediction.instance, "instance_id": prediction.id})
    submitted = {"instance_id": prediction.id, "model_name_or_path": "vcbench", "model_patch": prediction.patch}
    report: dict[str, Any] = get_eval_report(spec, submitted, str(log), include_tests_status=True)[prediction.id]
    return report


def obstacle(backend: Backend) -> str:
    """Why the backend cannot run tests here; empty if it answers."""
    if reason := unavailable():
        return reason
    if backend == "modal":
        return "" if _has_modal_token() else "Modal has no token here: run `modal setup`"
    # In a process of its own: a client that finds no daemon leaves its socket open.
    probe = [sys.executable, "-c", "import docker; docker.from_env().ping()"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"Docker does not answer ({reason}): start it, or see --harness modal and --exec-logs"
    return ""


def run_harness(predictions: Sequence[Prediction], model: str, directory: Path, backend: Backend) -> dict[str, Verdict]:
    """The verdicts of swebench's harness, which runs each instance's tests in a container; by instance.

    Everything that it writes stays in `directory`. Its run is named by the patches, so that an interrupted one goes on
    and another one's reports are never taken for its own.
    """
    submitted = [
        {"instance_id": each.id, "model_name_or_path": model, "model_patch": each.patch} for each in predictions
    ]
    run_id = f"vcbench-{hashlib.sha256(json.dumps(submitted).encode()).hexdigest()[:12]}"
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / f"{run_id}-instances.jsonl", [{**each.instance, "instance_id": each.id} for each in predictions])
    _write(directory / f"{run_id}-predictions.jsonl", submitted)
    command = [sys.executable, "-m", "swebench.harness.run_evaluation", "--run_id", run_id]
    command += ["--dataset_name", f"{run_id}-instances.jsonl", "--predictions_path", f"{run_id}-predictions.jsonl"]
    command += ["--max_workers", str(max(1, (os.cpu_count() or 1) * 3 // 4)), "--modal", str(backend == "modal")]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=None, check=False)
    ended = f" (the harness ended with {done.returncode}; what it printed is above)" if done.returncode else ""
    logs = directory / "logs" / "run_evaluation" / run_id / model
    return {each.id: _reported(logs / each.id / REPORT, each.id, ended) for each in predictions}


def _reported(path: Path, name: str, ended: str) -> Verdict:
    try:
        return _verdict(json.loads(path.read_text(encoding="utf-8"))[name])
    except FileNotFoundError:
        return Verdict(None, f"no report {path}{ended}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Verdict(None, f"{path} is not a report ({error}){ended}")


def _verdict(report: Mapping[str, Any]) -> Verdict:
    if report.get("infra_failure"):
        return Verdict(None, f"not the patch but its environment failed: {report.get('infra_failure_reason')}")
    return Verdict(bool(report["resolved"]))


def _has_modal_token() -> bool:
    return bool(os.environ.get("MODAL_TOKEN_ID")) or Path("~/.modal.toml").expanduser().is_file()


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_output(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii"))
