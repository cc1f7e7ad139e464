"""The soak in small: forty requests on tiny models, bit for bit, and a broken engine that it finds."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.lossless.independent import LARGEST_DIFFERENCE, Fork
from tests.lossless.soak import Tally, group_config, soak, tiny_ground
from vcbench.forensics.faulty import Engine
from vcbench.lossless.check import check_run
from vcbench.runners.run import execute

QUIET = Console(file=io.StringIO())


def test_forty_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    tally = soak([tiny_ground(3), tiny_ground(4)], 40, tmp_path / "soak", QUIET)
    assert tally.problems == []
    assert tally.passed
    assert tally.requests >= 40
    assert len(tally.methods) >= 6


def test_a_broken_engine_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "soak").mkdir()
    config = group_config(0, tiny_ground(3), tmp_path / "soak", seed=0)
    fault = "no_rollback_of_last_draft"
    tally = Tally()
    tally.add(check_run(execute(config, console=QUIET, engine=Engine(fault), fault=fault)), "g")
    assert not tally.passed
    assert any("VIOLATION" in problem for problem in tally.problems)


def test_a_tally_of_nothing_is_no_pass() -> None:
    assert not Tally().passed


def test_what_counts_as_a_near_tie() -> None:
    fork = Fork(prompt=0, step=3, ours=1, theirs=2, gaps=(1e-5, 1e-5), difference=1e-5)
    assert fork.is_near_tie
    assert not replace(fork, gaps=(3e-5, 1e-5)).is_near_tie
    assert not replace(fork, difference=2 * LARGEST_DIFFERENCE).is_near_tie
