"""`vcbench ls` and `vcbench doctor`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vcbench.cli.main import app
from vcbench.cli.runs import find_run
from vcbench.errors import UsageError


def _json(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == code
    return json.loads(done.stdout)


def _run(root: Path, name: str, provenance: str, *, complete: bool) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "config.yaml").write_text("name: x\n")
    (root / name / "provenance.json").write_text(provenance)
    if complete:
        digest = hashlib.sha256(b"").hexdigest()
        (root / name / "manifest.json").write_text(json.dumps({"sha256": digest}))


def test_registered_things_come_with_options_and_summary() -> None:
    compressors = {row["name"]: row for row in _json("ls", "compressors")}
    assert "factor" in compressors["snapkv"]["options"]
    assert compressors["none"]["options"] == "none"
    assert all(row["what it does"] for row in compressors.values())
    assert "stdlib" in {row["name"] for row in _json("ls", "tasks")}


def test_table_of_tasks() -> None:
    done = CliRunner().invoke(app, ["ls", "tasks"], catch_exceptions=False)
    assert "stdlib" in done.stdout
    assert "next: vcbench run" in done.stderr


def test_runs(tmp_path: Path) -> None:
    assert _json("ls", "runs", "--dir", str(tmp_path)) == []
    _run(tmp_path, "b", '{"started": "2030-01-02", "model": {"id": "tiny"}, "cells": []}', complete=True)
    _run(tmp_path, "a", '{"started": "2030-01-01", "cells": []}', complete=False)
    _run(tmp_path, "c", '{"started": ', complete=True)
    (tmp_path / "no-run").mkdir()
    damaged, unfinished, complete = _json("ls", "runs", "--dir", str(tmp_path))
    assert (damaged["run"], damaged["state"][:7]) == ("c", "damaged")
    assert (unfinished["run"], unfinished["model"], unfinished["state"]) == ("a", "-", "unfinished")
    assert (complete["run"], complete["model"], complete["state"]) == ("b", "tiny", "complete")
    done = CliRunner().invoke(app, ["ls", "runs", "--dir", str(tmp_path)], catch_exceptions=False)
    assert f"next: vcbench compare {tmp_path / 'b'}" in done.stderr


def test_runs_are_found_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there are none yet"):
        find_run("quickstart")
    _run(Path("runs"), "quickstart", "{}", complete=True)
    assert find_run("quickstart") == Path("runs/quickstart")
    assert find_run("runs/quickstart") == Path("runs/quickstart")
    with pytest.raises(UsageError, match="did you mean 'quickstart'"):
        find_run("quikstart")


def test_doctor_finds_this_machine_fit(tmp_path: Path) -> None:
    rows = {row["check"]: row for row in _json("doctor", "--dir", str(tmp_path / "runs"))}
    assert all(row["ok"] for row in rows.values())
    assert rows["torch"]["finding"].startswith("2.")
    assert {"python", "numba", "threads", "memory", "gpu", "embedded model", "runs directory"} <= rows.keys()
    assert not (tmp_path / "runs").exists()


def test_doctor_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(app, ["doctor", "--dir", str(tmp_path / "file" / "runs")], catch_exceptions=False)
    assert done.exit_code == 1
    assert "FAILED" in done.stdout
    assert "not ready: runs directory" in done.stderr
