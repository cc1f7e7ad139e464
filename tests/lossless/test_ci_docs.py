"""The workflows are valid, shown as they are, and every command in them is one that exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from vcbench.cli.main import app
from vcbench.lossless.outcome import EXIT_CODES
from vcbench.lossless.outputs import HEADER, OUTPUT
from vcbench.lossless.result import Verdict
from vcbench.lossless.thresholds import COUNTS, MEASURES, parse_fail_on

ROOT = Path(__file__).parents[2]
WORKFLOWS = ("gate.yml", "gate-gpu.yml")
PAGES = ("docs/ci.md", "docs/lossless.md", *(f".github/workflows/{name}" for name in WORKFLOWS))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_are_shown_as_they_are(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / name).read_text("utf-8")
    assert f"```yaml\n{text}```" in (ROOT / "docs" / "ci.md").read_text("utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])


@pytest.mark.parametrize(
    "name", [*(f".github/workflows/{name}" for name in WORKFLOWS), "docs/ci.md", "docs/lossless.md"]
)
def test_commands_exist(name: str) -> None:
    text = (ROOT / name).read_text("utf-8").replace("\\\n", " ")
    found = re.findall(r"^(?:\s*(?:- )?(?:run: )?)(?:\.venv/bin/)?vcbench (\w+)([^\n#]*)", text, re.MULTILINE)
    assert found
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for command, rest in found:
        known = {option for parameter in commands[command].params for option in parameter.opts}
        given = [word for word in shlex.split(rest, posix=False) if word.startswith("--")]
        assert set(given) <= known, command


def test_thresholds_of_the_pages_can_be_read() -> None:
    text = "".join((ROOT / name).read_text("utf-8") for name in ("docs/ci.md", "docs/lossless.md"))
    rules = re.findall(r'--fail-on "([^"]+)"', text)
    assert rules
    for rule in rules:
        parse_fail_on(rule)


def test_the_page_names_everything() -> None:
    text = (ROOT / "docs" / "lossless.md").read_text("utf-8")
    for name in (*Verdict, *HEADER, *OUTPUT, *COUNTS, *MEASURES, *EXIT_CODES):
        assert name in text, name


def test_the_cpu_workflow_has_six_minutes() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "gate.yml").read_text("utf-8"))
    assert workflow["jobs"]["gate"]["timeout-minutes"] == 6
