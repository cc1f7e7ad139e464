"""Every `vcbench` command that the documentation shows exists, with the options shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from vcbench.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md")))
COMMAND = re.compile(r"(?:^\$ |^|`|&& |\$\(VCBENCH\) |run: )vcbench (?P<rest>[^`#|>&\n]+)", re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """(page, arguments) of each command shown in a block, in backquotes or in the Makefile."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("$(VCBENCH)", "vcbench").replace("$(RUN)", "runs/quickstart")
        found += [(page.name, match["rest"].strip()) for match in COMMAND.finditer(text)]
    return found


def resolve(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the other words."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        context = command.make_context("vcbench", [], resilient_parsing=True)
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name!r}"
        command = found
    return command, rest


@pytest.mark.parametrize(("page", "arguments"), sorted(set(commands())))
def test_documented_commands_exist(page: str, arguments: str) -> None:
    words = [word for word in shlex.split(arguments) if word not in ("[...]", "…", "...")]
    command, rest = resolve(words)
    command.make_context("vcbench", rest, resilient_parsing=True)


def test_the_readme_shows_commands() -> None:
    assert sum(page == "README.md" for page, _ in commands()) >= 8
