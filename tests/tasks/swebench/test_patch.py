"""Patches found, parsed and tried: what is right counts, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tasks.swebench.patches import (
    FILES,
    GARBAGE,
    NEW_FILE,
    PATCH,
    PROSE,
    TRUNCATED,
    WRONG_CONTEXT,
    WRONG_FILE,
    WRONG_LINES,
)
from vcbench.errors import TaskError
from vcbench.tasks.swebench.patch import applies, extract_patch, file_f1, parse_patch


@pytest.mark.parametrize(
    "answer",
    [
        PATCH,
        f"<patch>\n{PATCH}</patch>",
        f"<diff>{PATCH}</diff> and that is all",
        f"Here it is:\n\n```diff\n{PATCH}```\nIt takes the absolute value.",
        f"```python\nx = 1\n```\n```patch\n{PATCH}```",
        f"```\n{PATCH}```",
        f"{PATCH}</s>{PROSE}",
    ],
)
def test_where_a_patch_is_found(answer: str) -> None:
    assert extract_patch(answer) == PATCH
    assert parse_patch(PATCH).valid


@pytest.mark.parametrize(
    ("answer", "extracted"),
    [
        (PATCH.rstrip("\n"), PATCH.rstrip("\n") + "\n"),
        (f"<patch>\n{TRUNCATED}", f"<patch>\n{TRUNCATED}"),
        (f"First <patch>\n{PATCH}</patch>, or else <patch>\n{NEW_FILE}</patch>", PATCH),
        (PROSE, None),
        ("", None),
        (f"```python\n{FILES['pkg/a.py']}```", None),
        (f"<patch>{PROSE}</patch>", None),
        (GARBAGE, None),
        ("<patch>" * 200_000, None),
        (f"</patch><diff>\n{PATCH}</diff><patch>", PATCH),
    ],
)
def test_what_is_extracted(answer: str, extracted: str | None) -> None:
    assert extract_patch(answer) == extracted


@pytest.mark.parametrize(
    ("patch", "valid", "applied"),
    [
        (PATCH, True, True),
        (NEW_FILE, True, True),
        (WRONG_LINES, True, True),
        (WRONG_CONTEXT, True, False),
        (WRONG_FILE, True, False),
        (TRUNCATED, False, False),
        (PROSE, False, False),
        (GARBAGE, False, False),
        ("diff --git a/x b/x\n", False, False),
        ("--- a/pkg/a.py\n+++ b/pkg/a.py\n", False, False),
        ("@@ -1 +1 @@\n-import os\n+import sys\n", False, False),
        (f"Here is the patch:\n\n{PATCH}\nThat is all.\n", True, True),
        (PATCH.replace("pkg/a.py", "../a.py"), True, False),
    ],
)
def test_format_and_application(patch: str, valid: bool, applied: bool) -> None:
    assert parse_patch(patch).valid is valid
    assert applies(patch, FILES) is applied


def test_what_a_patch_says() -> None:
    parsed = parse_patch(PATCH + NEW_FILE)
    assert (parsed.paths, parsed.hunks) == ({"pkg/a.py", "pkg/new.py"}, 2)
    assert parse_patch(PROSE).fault == "names no file"
    assert parse_patch("diff --git a/x b/x\n").fault == "has no hunks"
    assert "does not parse" in (parse_patch(TRUNCATED).fault or "")


@given(st.integers(0, len(PATCH) - 1))
def test_no_truncation_in_the_hunk_is_valid(end: int) -> None:
    parsed = parse_patch(PATCH[:end])
    assert parsed.valid is (PATCH[:end].count("\n") >= PATCH.count("\n") or end == len(PATCH) - 1)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
@example("--- \n+++ \n@@ -1 +1 @@\n")
@example("@@ -99999999999999999999 +1 @@\n")
@example("diff --git a/\u2028 b/\u2028\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-\u2028\n+y\n")
def test_no_answer_breaks_the_judge(text: str) -> None:
    patch = extract_patch(text)
    parsed = parse_patch(text if patch is None else patch)
    assert parsed.valid is (parsed.hunks > 0)
    assert patch is None or patch.endswith("\n")


def test_a_repository_around_the_directory_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a repository git apply passes over files outside its directory, and every patch would seem to apply."""
    import subprocess
    import tempfile

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for variable in (None, "GIT_DIR"):
        if variable is not None:
            monkeypatch.setenv(variable, str(tmp_path / ".git"))
        assert applies(PATCH, FILES)
        assert not applies(WRONG_CONTEXT, FILES)
        assert not applies(WRONG_FILE, FILES)


def test_files_outside_and_no_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in ("../x", "/etc/x"):
        with pytest.raises(TaskError, match="outside its repository"):
            applies(PATCH, {path: ""})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TaskError, match="git is needed"):
        applies(PATCH, FILES)


def test_carriage_returns_are_kept() -> None:
    files = {"a.txt": "one\r\ntwo\r\n"}
    patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+three\r\n"
    assert applies(patch, files)
    assert not applies(patch.replace("\r", ""), files)


def test_file_f1() -> None:
    both = frozenset({"a", "b"})
    assert file_f1(both, both) == 1.0
    assert file_f1(frozenset({"a"}), both) == pytest.approx(2 / 3)
    assert file_f1(frozenset(), both) == 0.0
    assert file_f1(frozenset({"c"}), both) == 0.0
