"""Foreign text is safe wherever it is shown."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.cli import output
from vcbench.records.printable import markdown_text, printable
from vcbench.report.frame import csv_text

NASTY = "a\x1b]0;t\x07\x1b[2J\u202e\u2066\ud83d\x00\x9b31m\n[red]:smile:\u2028"


@given(st.text(st.characters(), max_size=30))
def test_nothing_moves_the_cursor_or_fails_to_encode(text: str) -> None:
    for shown in (printable(text), markdown_text(text)):
        shown.encode("utf-8")
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]", shown)


@given(st.lists(st.text(st.characters(), max_size=12), min_size=1, max_size=4))
def test_no_cell_of_a_spreadsheet_is_a_formula(texts: list[str]) -> None:
    out = csv_text([{"x": text, "n": -1.5, "none": None} for text in texts])
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == len(texts)
    for row in rows:
        assert not row["x"].lstrip().startswith(("=", "+", "-", "@"))
        assert (row["n"], row["none"]) == ("-1.5", "")


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-cmd", "@SUM(A1)", '=cmd|" /C calc"!A0', " =1", "\t=1", "\r=1"])
def test_formulas_are_defused(formula: str) -> None:
    (row,) = csv.DictReader(io.StringIO(csv_text([{"label": formula}])))
    assert row["label"] == "'" + printable(formula) or row["label"].startswith("\\")


def test_consoles_print_foreign_text_safely(capsys: pytest.CaptureFixture[str]) -> None:
    """However it gets there: plain, in a table, in its title or header."""
    output.notes().print(NASTY, markup=False)
    output.results().print(output.table(NASTY, [NASTY], [[NASTY]]), markup=False)
    out, err = capsys.readouterr()
    for text in (out, err):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066\u2028]", text)
        assert ":smile:" in text
        assert "[red]" in text


@pytest.mark.parametrize("columns", ["0", "-3", "x", "", "00"])
def test_a_width_that_cannot_be_is_no_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    output.results().print(output.table("title", ["column"], [["some text"]]))
    assert "some text" in capsys.readouterr().out
