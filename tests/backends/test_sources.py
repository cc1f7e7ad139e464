"""A change in what answers makes another run; a change in what only shows leaves every run as it was."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from vcbench.backends.sources import ANSWERS, FAULTS, PACKAGE, SHOWS, code_sha256

SCORES = {("tasks/trace.py", "vcbench.metrics.alignment")}
"""Tasks score recorded answers too, with the figures of `metrics`; no prompt is made with them."""


def imported(source: Path) -> Iterator[str]:
    """The modules of vcbench that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: a relative import would not be seen here"
            module = node.module or ""
            yield from ([f"{module}.{name.name}" for name in node.names] if module == "vcbench" else [module])


def test_every_package_is_on_one_list() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert packages <= {*ANSWERS, *SHOWS}
    assert not set(ANSWERS) & set(SHOWS)
    assert set(FAULTS) <= set(SHOWS)


def test_nothing_that_answers_imports_what_only_shows() -> None:
    found = {
        (source.relative_to(PACKAGE).as_posix(), module)
        for source in PACKAGE.rglob("*.py")
        if source.relative_to(PACKAGE).parts[0] not in SHOWS
        for module in imported(source)
        if module.partition(".")[0] == "vcbench" and module.split(".")[1:2] and module.split(".")[1] in SHOWS
    }

    assert found == SCORES


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in (*ANSWERS, *SHOWS):
        (tmp_path / name / "deeper").mkdir(parents=True)
        (tmp_path / name / "deeper" / "module.py").write_text("a = 1\n")
    (tmp_path / "errors.py").write_text("a = 1\n")
    return tmp_path


def hashed(package: Path, *besides: str) -> str:
    code_sha256.cache_clear()
    try:
        return code_sha256(package, besides)
    finally:
        code_sha256.cache_clear()


@pytest.mark.parametrize("name", [*(f"{name}/deeper/module.py" for name in ANSWERS), "errors.py"])
def test_what_answers_counts(package: Path, name: str) -> None:
    before = hashed(package)
    (package / name).write_text("a = 2\n")
    changed = hashed(package)
    (package / name).rename((package / name).with_name("renamed.py"))

    assert len({before, changed, hashed(package)}) == 3


@pytest.mark.parametrize("name", SHOWS)
def test_what_only_shows_does_not_count(package: Path, name: str) -> None:
    before = hashed(package)
    (package / name / "deeper" / "module.py").write_text("a = 2\n")
    (package / name / "another.py").write_text("a = 2\n")

    assert hashed(package) == before


def test_neither_line_ends_nor_other_files_count(package: Path) -> None:
    before = hashed(package)
    (package / "engine" / "notes.txt").write_text("no code")
    (package / "errors.py").write_bytes(b"a = 1\r\n")

    assert hashed(package) == before


def test_a_run_with_a_fault_depends_on_what_builds_it_in(package: Path) -> None:
    before = hashed(package, *FAULTS)
    (package / "forensics" / "deeper" / "module.py").write_text("a = 2\n")

    assert hashed(package, *FAULTS) != before
