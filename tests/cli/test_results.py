"""`vcbench compare`, `check` and `show` on a small recorded run."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vcbench.cli.main import app
from vcbench.records.schema import BatchLine, PromptLine, RequestLine
from vcbench.records.store import RunDirectory

PROMPT = [5, 6, 7]
DIGEST = hashlib.sha256(",".join(map(str, PROMPT)).encode()).hexdigest()
KV: dict[str, Any] = {"codes": 100, "stored": 120, "full": 400, "resident": 520, "parts": {}}
CELLS: list[dict[str, Any]] = [
    {"id": "f" * 16, "label": "full", "arm": "full", "task": "ask"},
    {
        "id": "a" * 16,
        "label": "vericache snap k=4",
        "arm": "vericache",
        "method": "snap",
        "compressor": "snapkv",
        "draft_length": 4,
        "task": "ask",
    },
]


def _record(path: Path, answer: list[int]) -> None:
    with RunDirectory.create(path, "engine: {exactness: bitwise}\n", {"cells": CELLS, "model": {"id": "tiny"}}) as run:
        run.append(PromptLine(task="ask", request="one", prompt_ids=PROMPT, prompt_sha256=DIGEST, document_sha256="d"))
        for cell, ids in zip(CELLS, ([1, 2, 3, 4], answer), strict=True):
            drafts = cell["arm"] == "vericache"
            name = str(cell["id"])
            run.append(
                RequestLine(
                    cell=name,
                    task="ask",
                    request="one",
                    prompt_sha256=DIGEST,
                    token_ids=ids,
                    text="text",
                    finish_reason="length",
                    drafted=[4] if drafts else [],
                    accepted=[2] if drafts else [],
                    committed=[3] if drafts else [],
                    kv_start=KV,
                    kv_end=KV,
                    cache_classes={"KeptCache": 2} if drafts else {},
                    logits_sha256="ab",
                    timing={"decode_s": 1.0},
                )
            )
            run.append(BatchLine(cell=name, task="ask", requests=["one"], tokens=4, timing={"decode_s": 1.0}))
        run.finish()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    _record(Path("runs/good"), [1, 2, 3, 4])
    _record(Path("runs/bad"), [1, 2, 9, 4])
    return tmp_path


def _invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.usefixtures("runs")
def test_check_passes_and_fails() -> None:
    code, out, err = _invoke("check", "good")
    assert code == 0, out
    assert "bitwise lossless: 1 of 1 request" in out
    assert "next: vcbench compare" in err
    code, out, err = _invoke("check", "runs/bad")
    assert code == 1
    assert "NOT bitwise lossless" in out
    assert "next: vcbench check runs/bad --request one --cell 'vericache snap k=4' --controls" in err
    code, out, _ = _invoke("check", "bad", "--json")
    assert code == 1
    assert json.loads(out)["outcome"] == "FAIL"


@pytest.mark.usefixtures("runs")
def test_compare_in_every_form() -> None:
    code, out, _ = _invoke("compare", "good", "bad")
    assert code == 0
    assert "vericache snap k=4" in out
    _, out, _ = _invoke("compare", "good", "--json")
    assert json.loads(out)["runs"][0]["name"] == "good"
    _, out, _ = _invoke("compare", "good", "--csv")
    assert [row["label"] for row in csv.DictReader(io.StringIO(out))] == ["full", "vericache snap k=4"]
    _, out, _ = _invoke("compare", "good", "--markdown")
    assert out.startswith("| cell |")


@pytest.mark.usefixtures("runs")
def test_show_marks_the_fork() -> None:
    code, out, err = _invoke("show", "bad", "--request", "one")
    assert code == 0
    assert "leaves full KV at token 2" in out
    assert "next: vcbench check" in err
