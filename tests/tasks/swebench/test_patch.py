"""Patches found, parsed and tried: what is right counts, and nothing else does."""

from __future__ import annotations

import re
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
from vcbench.tasks.swebench.patch import applies, extract_patch, file_f1, parse_patch, swebench_patch

MAIL = """\
From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001
From: A <a@b.test>
Date: Tue, 2 Jan 2024 03:04:05 +0000
Subject: [PATCH] Take the absolute value

---
 pkg/a.py | 1 +
 1 file changed, 1 insertion(+)

"""
CRLF = PATCH.replace("\n", "\r\n")


def indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "answer",
    [
        PATCH,
        f"<patch>\n{PATCH}</patch>",
        f"{PATCH}\nTry it:\n\n```python\nassert f(-1) == 1\n```\n",
        f"The code is\n```python\ndef f(x): ...\n```\n{PATCH}",
        f"```python\nx = 1\n```\n\n```diff\n{PATCH}```\n\nTry it:\n```python\nassert f(-1) == 1\n```\n",
        f"```bash\nls\n```\n```\n{PATCH}```\n",
        f"````markdown\n```diff\n{PATCH}```\n````\n",
        f"~~~diff\n{PATCH}~~~\n",
        f"```diff\n{PATCH}",
        f"```diff file=a.py\n{PATCH}```",
        f"``` diff\n{PATCH}\n```",
        f"<patch>\n```diff\n{PATCH}```\n</patch>",
        f"```\n<patch>\n{PATCH}</patch>\n```",
        f"I put it in a <patch> tag.\n<patch>\n{PATCH}</patch>",
        f"<patch>\nnone yet\n</patch>\n```diff\n{PATCH}```",
        f"<answer>\n{PATCH}</answer>",
        f"<code>x</code> then\n```diff\n{PATCH}```",
        f"1. Do this:\n\n   ```diff\n{indented(PATCH, 3)}   ```\n2. Done.\n",
        f"Like so:\n\n{indented(PATCH, 4)}\nThat is all.",
        f"{MAIL}{PATCH}-- \n2.39.2\n",
        f"```diff\n{MAIL}{PATCH}-- \n2.39.2\n```",
        f"Here:\r\n\r\n```diff\r\n{CRLF}```\r\nDone.\r\n",
        CRLF,
        f"{PATCH}\n- this takes the absolute value\n+ and no more\n",
        f"```diff\n{PATCH}```\nOr, the same again:\n```diff\n{PATCH}```\n",
        f"```diff\n{PATCH}```\nOr else:\n```diff\n{PATCH.replace('abs(x)', '-x')}```\n",
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


README = {"README.md": "# Use\n\n```bash\nrun\n```\n\nEnd.\n"}
README_PATCH = """\
--- a/README.md
+++ b/README.md
@@ -1,7 +1,13 @@
 # Use
 
 ```bash
-run
+run --fast
 ```
+
+```python
+run()
+```
+
+</patch>
 
 End.
"""
GLUED = """\
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,9 +1,9 @@
 import os


 def f(x):
-    return x
+    return abs(x)


 def g(x):
     return os.fspath(x)
"""
"""As models write it that drop the space of an empty line."""


@pytest.mark.parametrize(
    "around", ["{}", "```diff\n{}```\n", "<patch>\n{}</patch>\n", "````diff\n{}````", "Here:\n\n{}\nEnd"]
)
def test_fences_and_tags_inside_a_diff(around: str) -> None:
    found = extract_patch(around.format(README_PATCH))
    assert found == README_PATCH
    assert applies(found, README)
    found = extract_patch(around.format(GLUED))
    assert found == GLUED
    assert parse_patch(found).valid
    assert applies(found, FILES)


def test_several_diffs() -> None:
    """Other files and other lines are added; what is changed already stays."""
    second = "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -8,2 +8,2 @@\n def g(x):\n-    return os.fspath(x)\n+    return x\n"
    apart = f"First\n```diff\n{PATCH}```\nthen\n```diff\n{NEW_FILE}```\nand\n```diff\n{second}```\n"
    assert extract_patch(apart) == PATCH + NEW_FILE + second
    assert extract_patch(f"```diff\n{PATCH}{NEW_FILE}```") == PATCH + NEW_FILE
    assert extract_patch(f"```diff\n{PATCH}\n{NEW_FILE}```") == f"{PATCH}\n{NEW_FILE}"
    follows = PATCH.replace("     return x", "     return x + 1")
    assert extract_patch(f"{MAIL}{PATCH}-- \n2.39\n\n{MAIL}{follows}-- \n2.39\n") == PATCH + follows
    assert extract_patch(f"@@ -1 +1 @@\n-x\n+y\n\nor better\n\n{PATCH}") == PATCH
    assert extract_patch("```diff\n@@ ... @@\n-x\n+y\n```") is None
    bare = "@@ -1 +1 @@\n-x\n+y\n"
    assert extract_patch(f"```diff\n{bare}```") == bare
    assert not parse_patch(bare).valid


def test_a_removed_line_may_look_like_a_header() -> None:
    sql = "--- a/q.sql\n+++ b/q.sql\n@@ -1,2 +1,2 @@\n--- old comment\n+++ no\n x\n"
    assert extract_patch(f"```diff\n{sql}```\n") == sql
    assert applies(sql, {"q.sql": "-- old comment\nx\n"})


def test_files_that_go_and_are_renamed() -> None:
    gone = "diff --git a/x b/x\ndeleted file mode 100644\nindex 0..1\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
    moved = "diff --git a/y b/z\nsimilarity index 100%\nrename from y\nrename to z\n"
    unended = "--- a/w\n+++ b/w\n@@ -1 +1 @@\n-1\n\\ No newline at end of file\n+2\n\\ No newline at end of file\n"
    assert extract_patch(f"Do:\n```diff\n{gone}{moved}{unended}```") == gone + moved + unended
    assert extract_patch(f"Do:\n{gone}{moved}{unended}Done.") == gone + moved + unended


PIECES = st.sampled_from(
    [PATCH, NEW_FILE, README_PATCH, "```diff\n", "```patch\n", "```\n", "```python\n", "````\n", "```", "<patch>",
     "</patch>", "<diff>\n", "</diff>", "<a-b>", "</a-b>", "text", "\n", "</s>", "<patch", ">"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=12))
def test_swebenchs_own_extractor_is_restated_exactly(pieces: list[str]) -> None:
    utils = pytest.importorskip(
        "swebench.inference.make_datasets.utils", reason="the extra `swebench` is not installed"
    )
    text = "".join(pieces)
    assert swebench_patch(text) == utils.extract_diff(text)


@given(st.lists(PIECES, max_size=12))
def test_what_is_found_is_a_patch_of_the_answers_lines(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = extract_patch(text)
    if found is not None:
        assert set(found.split("\n")) <= {
            line for part in text.split("\n") for line in (part, *re.split("</?(?:patch|diff)>", part))
        } | {""}


def test_endless_openings_take_linear_time() -> None:
    for piece in (
        "<patch>",
        "```diff\n",
        "--- a/x\n+++ b/x\n",
        "@@ -1 +1 @@\n",
        "diff --git a/x b/x\n",
        "<a>\n\n",
        "\n",
    ):
        extract_patch(piece * 50_000)
        swebench_patch(piece * 50_000)


@pytest.mark.parametrize(
    ("answer", "extracted"),
    [
        (PATCH.rstrip("\n"), PATCH.rstrip("\n") + "\n"),
        (f"<patch>\n{TRUNCATED}", TRUNCATED),
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
