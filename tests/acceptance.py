"""The numbered checks of the compressors' specification: which there are, which tests make them, and how those ended.

A test names what it checks by `@pytest.mark.acceptance("A-GEN-2")`. As a plug-in of the session this module takes down
how each such test ended, which `test_acceptance_checks.py` then judges.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COUNTS = {
    "ACC": 4, "GEN": 7, "DROP": 6, "KVZ": 3, "SNAP": 3, "STR": 3, "H2O": 3, "EA": 4, "Q": 4, "KIVI": 6, "KVQ": 6,
    "ROT": 5, "TQ": 9, "FP8": 3, "SPEC": 3,
}  # fmt: skip
"""How many checks each family has."""
MEASURED = {"A-KVQ-6": "benchmarks/quality/perplexity.py"}
"""Checks that no test makes, but a measurement of many minutes."""
ASKED = [f"A-{family}-{number}" for family, count in COUNTS.items() for number in range(1, count + 1)]
REPORT = "VCBENCH_ACCEPTANCE_REPORT"
"""The environment variable that names a file to write the outcomes to."""
JUDGES = "test_acceptance_checks.py"
Ended = dict[str, str]
"""By node id: `passed`, `failed` or `skipped`; `not run` until it has ended."""
RANK = ("not run", "passed", "skipped", "failed")


class Outcomes:
    """How the tests of each check ended in this session."""

    def __init__(self) -> None:
        self.by_check: dict[str, Ended] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Takes down whose tests will run, and puts those that judge them last."""
        items.sort(key=lambda item: item.path.name == JUDGES)
        for item in items:
            for check in checks_of(item):
                self.by_check.setdefault(check, {})[item.nodeid] = RANK[0]

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Forgets tests that will not run."""
        for item in items:
            for ended in self.by_check.values():
                ended.pop(item.nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test ended as the worst of its set-up, its call and its tear-down."""
        for ended in self.by_check.values():
            if report.nodeid in ended and (report.when == "call" or report.outcome != "passed"):
                ended[report.nodeid] = max(ended[report.nodeid], report.outcome, key=RANK.index)

    def pytest_sessionfinish(self) -> None:
        """Writes the outcomes where another session asked for them."""
        if path := os.environ.get(REPORT):
            Path(path).write_text(json.dumps(self.by_check), encoding="utf-8")


def checks_of(item: pytest.Item) -> list[str]:
    """The checks that a test makes. Raises UsageError for one that the specification does not have."""
    found = [check for mark in item.iter_markers("acceptance") for check in mark.args]
    if unknown := [check for check in found if check not in ASKED or check in MEASURED]:
        raise pytest.UsageError(f"{item.nodeid}: the specification has no check {', '.join(unknown)}")
    return found


def verdict(check: str, ended: Ended) -> str:
    """Why a check is not made; empty if one of its tests passed and none failed or was left out of the run."""
    if not ended:
        return f"no test of the run is marked acceptance({check!r})"
    bad = [name for name, outcome in ended.items() if outcome in ("failed", "not run")]
    if bad:
        return f"{check}: {', '.join(f'{name} {ended[name]}' for name in bad)}"
    return "" if "passed" in ended.values() else f"{check}: all its tests were skipped: {', '.join(ended)}"
