"""Prompts: numbered files that can be read back, and the code section found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vcbench.tasks.swebench.prompt import build_text, is_marker, number_lines, shown_files, split_code

CONTENT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
PATHS = st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5}\.py)?", fullmatch=True)


def test_numbers() -> None:
    assert number_lines("a\n\nb\n") == "1 a\n2 \n3 b\n4 "
    assert number_lines("") == "1 "


@given(st.dictionaries(PATHS, CONTENT, min_size=1, max_size=4), CONTENT)
def test_files_are_read_back(files: dict[str, str], problem: str) -> None:
    text = build_text(f"An issue.\n{problem}", files)
    assert shown_files(text) == files
    before, code, after = split_code(text)
    assert before + code + after == text
    assert before.endswith("<code>\n")
    assert after.startswith("</code>")


def test_an_issue_that_speaks_of_code() -> None:
    text = build_text("Use <code>\nx\n</code> and [start of it]\n1 x\n[end of it].", {"a.py": "x\n"})
    assert shown_files(text) == {"a.py": "x\n"}


def test_texts_without_files() -> None:
    assert split_code("no code here") == ("no code here", "", "")
    assert shown_files("no code here") is None
    assert shown_files("<code>\n[start of a]\n1 x\nnot numbered\n[end of a]\n</code>") is None


def test_markers() -> None:
    assert is_marker("[start of a/b.py]\n")
    assert is_marker("[end of README.md]")
    assert not is_marker("3 [end of a]\n")
    assert not is_marker("[started]\n")
