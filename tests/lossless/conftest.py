"""Runs of the gate's tiny model, sound and with each fault, made once."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from vcbench.forensics.gate import run_for_gate, tiny_run
from vcbench.records.reader import Run, load_run

TinyRuns = Callable[[str | None], Run]
_PLACES: list[Path] = []
_MADE: dict[str | None, Path] = {}
"""Shared by every folder whose tests use the fixtures: each of them has a fixture of its own, but one run a fault."""


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory: pytest.TempPathFactory) -> TinyRuns:
    """The tiny run with a fault (None: without), under one working directory that holds `runs/`."""
    if not _PLACES:
        _PLACES.append(tmp_path_factory.mktemp("gate"))
    (place,) = _PLACES

    def run(fault: str | None) -> Run:
        if fault not in _MADE:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(place)
                patch.setenv("VCBENCH_CACHE_DIR", str(place / "cache"))
                path = run_for_gate(tiny_run(), fault=fault, console=Console(file=io.StringIO()))
                _MADE[fault] = place / path
        return load_run(_MADE[fault])

    return run


@pytest.fixture
def tiny_place(tiny_runs: TinyRuns, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the tiny runs, with the sound one in it."""
    place = tiny_runs(None).path.parent.parent
    monkeypatch.chdir(place)
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(place / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return place
