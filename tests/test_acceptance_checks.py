"""Every numbered check of the compressors' specification is made by a test that ran and passed.

In a run of all tests their outcomes are those of the run itself; a run of a part makes the other checks in a process of
its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance import ASKED, COUNTS, MEASURED, REPORT, ROOT, Ended, Outcomes, verdict

TESTED = [check for check in ASKED if check not in MEASURED]


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How the tests of each check ended."""
    plugin = request.config.pluginmanager.get_plugin("acceptance")
    assert isinstance(plugin, Outcomes)
    wanted = {mark for item in request.session.items for mark in _asked(item)}
    if wanted <= plugin.by_check.keys():
        return plugin.by_check
    path = tmp_path_factory.mktemp("acceptance") / "outcomes.json"
    command = [sys.executable, "-m", "pytest", "-m", "acceptance and not slow and not net", "tests"]
    command += ["-k", "not test_acceptance_checks", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {REPORT: str(path)}, capture_output=True, text=True, check=False
    )
    assert path.is_file(), done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Ended] = json.loads(path.read_text("utf-8"))
    return found


def _asked(item: pytest.Item) -> list[str]:
    """The checks that an item of this file judges in this session."""
    callspec = getattr(item, "callspec", None)
    return [callspec.params["check"]] if callspec is not None and "check" in callspec.params else []


@pytest.mark.parametrize("check", TESTED)
def test_the_check_is_made(check: str, outcomes: dict[str, Ended]) -> None:
    ended = outcomes.get(check, {})
    if ended and set(ended.values()) == {"skipped"}:
        pytest.skip(verdict(check, ended))
    assert verdict(check, ended) == ""


def test_the_families_and_what_only_a_measurement_can_make() -> None:
    assert len(ASKED) == sum(COUNTS.values()) == 69
    assert all((ROOT / script).is_file() for script in MEASURED.values())


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        ({}, "no test of the run is marked"),
        ({"a": "failed", "b": "passed"}, "A-GEN-1: a failed"),
        ({"a": "not run"}, "A-GEN-1: a not run"),
        ({"a": "skipped"}, "all its tests were skipped: a"),
        ({"a": "skipped", "b": "passed"}, ""),
    ],
)
def test_a_check_that_is_not_made_is_told(ended: Ended, says: str) -> None:
    found = verdict("A-GEN-1", ended)
    assert says in found if says else found == ""


SESSION = """
import pytest
from tests.acceptance import Outcomes

@pytest.mark.acceptance("A-GEN-1")
def test_passes(): pass

@pytest.mark.acceptance("A-GEN-1", "A-GEN-2")
@pytest.mark.parametrize("x", [1, 2])
def test_fails_once(x): assert x == 1

@pytest.mark.acceptance("A-GEN-3")
def test_skipped(): pytest.skip("not here")

@pytest.fixture
def broken(): raise ValueError

@pytest.mark.acceptance("A-GEN-4")
def test_never_begins(broken): pass

@pytest.mark.acceptance("A-GEN-5")
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""


def session(directory: Path, text: str, *arguments: str) -> tuple[int, str, dict[str, Ended]]:
    (directory / "test_some.py").write_text(text)
    (directory / "conftest.py").write_text(
        "from tests.acceptance import Outcomes\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(Outcomes(), 'acceptance')\n"
        "    config.addinivalue_line('markers', 'acceptance(check): one')\n"
    )
    path = directory / "outcomes.json"
    environment = os.environ | {REPORT: str(path), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(directory), *arguments]
    done = subprocess.run(
        [*command, str(directory)], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr, json.loads(path.read_text()) if path.exists() else {}


def test_outcomes_are_those_of_the_tests_that_ran(tmp_path: Path) -> None:
    code, _, found = session(tmp_path, SESSION)

    assert code == 1
    assert {check: set(ended.values()) for check, ended in found.items()} == {
        "A-GEN-1": {"passed", "failed"},
        "A-GEN-2": {"passed", "failed"},
        "A-GEN-3": {"skipped"},
        "A-GEN-4": {"failed"},
        "A-GEN-5": {"skipped"},
    }
    _, _, left = session(tmp_path, SESSION, "-k", "passes")
    assert {check: list(ended.values()) for check, ended in left.items() if ended} == {"A-GEN-1": ["passed"]}


def test_a_check_that_nobody_asked_for_stops_the_session(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.acceptance('A-GEN-9')\ndef test_it(): pass\n"
    code, said, _ = session(tmp_path, text)

    assert code != 0
    assert "the specification has no check A-GEN-9" in said
