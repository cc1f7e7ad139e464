"""Provenance says what ran, and nothing about who ran it or where."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import vcbench
from vcbench.records import provenance
from vcbench.records.files import json_bytes


def test_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("HF_TOKEN", "secret")
    cells = [{"id": "c1", "label": "full", "arm": "full"}]
    found = provenance.collect(cells=cells, model={"id": "m"}, seeds={"run": 3}, extra={"probe": {"tile": 8}})
    assert found["cells"] == cells
    assert found["seeds"] == {"run": 3}
    assert found["probe"] == {"tile": 8}
    assert found["versions"]["vcbench"] == vcbench.__version__
    assert found["hardware"]["memory_bytes"] > 0
    assert found["environment"]["OMP_NUM_THREADS"] == "2"
    assert "secret" not in json.dumps(found)
    assert json.loads(json_bytes(found)) == found


def test_neither_user_nor_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.chdir(tmp_path)
    argv = [
        "/home/somebody/venv/bin/vcbench",
        "run",
        "/home/somebody/work/a.yaml",
        f"{tmp_path}/configs/b.yaml",
        "--set",
        "model.id=/home/somebody/model",
        "/data/other/c.yaml",
        "a/b=c",
    ]
    assert provenance.collect(cells=[], argv=argv)["command"] == [
        "vcbench",
        "run",
        "~/work/a.yaml",
        "configs/b.yaml",
        "--set",
        "model.id=~/model",
        ".../c.yaml",
        "a/b=c",
    ]
    assert provenance.neutral("/opt/a/lib:/home/somebody/lib") == ".../lib:~/lib"
    text = json.dumps(provenance.collect(cells=[], argv=argv))
    assert "somebody" not in text
    assert str(tmp_path) not in text


def test_git_state_of_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "vcbench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(vcbench, "__file__", str(package / "__init__.py"))
    assert provenance.git_state() == {"commit": None, "dirty": None}
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance.git_state() == {"commit": None, "dirty": None}, "a package that git does not track"
    subprocess.run([*git, "add", "vcbench"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    clean = provenance.git_state()
    assert clean["dirty"] is False
    assert len(clean["commit"]) == 40
    (package / "extra.py").write_text("")
    assert provenance.git_state() == {"commit": clean["commit"], "dirty": True}


def test_without_git_or_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    assert provenance.git_state() == {"commit": None, "dirty": None}
    monkeypatch.setattr(provenance, "_cpuinfo", dict)
    assert provenance.hardware()["cpu"]
