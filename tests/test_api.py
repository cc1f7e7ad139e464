"""`vcbench.api` has what it lists, loads nothing before it is asked for, and is all that the pages for plug-ins use."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vcbench import api

ROOT = Path(__file__).parents[1]
PAGES = ("extending.md", "calibration.md")


def typed_names() -> dict[str, str]:
    """The names that a type checker sees, and the modules that it finds them in."""
    tree = ast.parse(Path(api.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        name.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names
    }


def test_types_and_run_time_agree() -> None:
    assert typed_names() == {name: module for module, names in api.HOMES.items() for name in names}


@pytest.mark.parametrize("name", api.__all__)
def test_every_name_is_what_its_home_has(name: str) -> None:
    assert getattr(api, name) is getattr(importlib.import_module(typed_names()[name]), name)


def test_a_name_that_is_not_offered_is_refused() -> None:
    with pytest.raises(ImportError, match="cannot import name 'PagedStore'"):
        exec("from vcbench.api import PagedStore")
    with pytest.raises(AttributeError, match="offers no 'PagedStore'"):
        api.PagedStore  # noqa: B018


def test_tasks_load_no_torch() -> None:
    program = "import sys; from vcbench.api import Task, register; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("page", PAGES)
def test_pages_for_plug_ins_import_from_it_alone(page: str) -> None:
    """Neither an import of another module nor a path of one, but for examples to read in `compressors` and `tasks`."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    imported = set(re.findall(r"^ *(?:from|import) (vcbench[\w.]*)", text, re.M))
    assert imported <= {"vcbench.api"}
    assert not re.findall(r"vcbench/(?!compressors/\w+\.py|compressors/`)[\w/]+\.py", text)


def test_names_on_the_page_are_offered() -> None:
    """What the table of bases and the list below it name in code, where it looks like a class."""
    text = (ROOT / "docs" / "extending.md").read_text("utf-8")
    section = text[text.index("### What to build on") : text.index("## A task")]
    classes = set(re.findall(r"`([A-Z]\w+)`", section))
    assert len(classes) >= 8
    assert classes <= set(api.__all__)
