"""`vcbench ls` and `vcbench doctor`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vcbench.cli.main import app
from vcbench.cli.runs import find_run
from vcbench.errors import UsageError
from vcbench.records.store import RunDirectory


def _json(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == code
    return json.loads(done.stdout)


def _run(root: Path, name: str, provenance: dict[str, Any], *, complete: bool) -> Path:
    with RunDirectory.create(root / name, "name: x\n", provenance) as run:
        if complete:
            run.finish()
    return root / name


def test_registered_things_come_with_options_and_summary() -> None:
    compressors = {row["name"]: row for row in _json("ls", "compressors")}
    assert "factor" in compressors["snapkv"]["options"]
    assert compressors["none"]["options"] == "none"
    assert all(row["what it does"] for row in compressors.values())
    assert "stdlib" in {row["name"] for row in _json("ls", "tasks")}


DEEP = "a: " + "[" * 20_000
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 99))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", DEEP.encode()),
        ("config.yaml", LAUGHS.encode()),
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", None),
        ("provenance.json", b"[" * 100_000),
        ("provenance.json", b"\x00\x01"),
        ("provenance.json", b'{"schema": 2, "cells": [{"id": "a", "label": "b", "arm": "full", "method": [[]]}]}'),
        ("provenance.json", b'{"schema": 2, "cells": [], "model": {"id": {"a": [1]}}, "started": ["x"]}'),
        ("manifest.json", b'{"schema": 99}'),
        ("manifest.json", None),
        ("requests.jsonl", b"[" * 100_000 + b"\n"),
        ("requests.jsonl", None),
    ],
)
def test_one_bad_run_is_one_line(tmp_path: Path, name: str, content: bytes | None) -> None:
    """None: a directory stands where the file should be."""
    _run(tmp_path, "good", {"cells": []}, complete=True)
    bad = _run(tmp_path, "bad", {"cells": []}, complete=True)
    (bad / name).unlink()
    if content is None:
        (bad / name).mkdir()
    else:
        (bad / name).write_bytes(content)
    rows = {row["run"]: row["state"] for row in _json("ls", "runs", "--dir", str(tmp_path))}
    assert rows["good"] == "complete"
    assert rows["bad"].startswith("damaged: ") or (rows["bad"] == "unfinished" and name == "manifest.json")
    assert len(rows["bad"]) < 500


def test_foreign_text_moves_no_cursor(tmp_path: Path) -> None:
    nasty = "m\x1b]0;owned\x07\x1b[2J\u202e\n[red]"
    _run(tmp_path, "r", {"started": nasty, "model": {"id": nasty}, "cells": []}, complete=True)
    done = CliRunner().invoke(app, ["ls", "runs", "--dir", str(tmp_path)], catch_exceptions=False, color=False)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", done.stdout + done.stderr)
    assert r"\x1b]0;owned\x07\x1b[2J\u202e\n[red]" in "".join(done.stdout.split())


def test_table_of_tasks() -> None:
    done = CliRunner().invoke(app, ["ls", "tasks"], catch_exceptions=False)
    assert "stdlib" in done.stdout
    assert "next: vcbench run" in done.stderr


def test_runs(tmp_path: Path) -> None:
    assert _json("ls", "runs", "--dir", str(tmp_path)) == []
    _run(tmp_path, "b", {"started": "2030-01-02", "model": {"id": "tiny"}, "cells": []}, complete=True)
    _run(tmp_path, "a", {"started": "2030-01-01", "cells": []}, complete=False)
    (_run(tmp_path, "c", {"cells": []}, complete=True) / "provenance.json").write_text('{"started": ')
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
    _run(Path("runs"), "quickstart", {"cells": []}, complete=True)
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
    assert done.exit_code == 64
    assert "FAILED" in done.stdout
    assert "not ready: runs directory" in done.stderr
