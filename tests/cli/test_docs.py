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


def check_shown(arguments: str) -> None:
    """Fails unless the words name a command that takes every option shown and as many arguments; values are not read.

    A name alone, or one with an option alone, is a mention and may lack what a call would need.
    """
    words = [word.strip("[]") for word in shlex.split(arguments) if word not in ("[...]", "…", "...")]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        assert name in command.commands, f"no command {name!r}"
        command = command.commands[name]
    if len(words) == 1 and words[0].startswith("--"):
        assert words[0] in {option for parameter in command.params for option in parameter.opts} | {"--help"}
        return
    context = type(command.make_context("vcbench", [], resilient_parsing=True))(command)
    _, left, _ = command.make_parser(context).parse_args(words)
    assert not left, f"words that {command.name} does not take: {left}"


@pytest.mark.parametrize(("page", "arguments"), sorted(set(commands())))
def test_documented_commands_exist(page: str, arguments: str) -> None:
    check_shown(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        "runs all",
        "run a.yaml --fast",
        "run --fast",
        "compare a b --json c --columns",
        "model fetch ID --wheels x",
        "model list ID",
    ],
)
def test_what_does_not_exist_is_found(arguments: str) -> None:
    with pytest.raises(Exception, match=r"No such option|no command|does not take|assert"):
        check_shown(arguments)


def test_the_readme_shows_commands() -> None:
    assert sum(page == "README.md" for page, _ in commands()) >= 8
