"""Tables: how an answer's is found, and precision and recall of damaged ones."""

from __future__ import annotations

import pytest

from tests.real_data import real
from vcbench.tasks.longform_sets.tables import overlap, table
from vcbench.tasks.rows import read_rows

TEXT = "boat\tleaves\nThe Elsa\t07:00\nKestrel\t08:30\nMarit\t11:45\n"
ROWS = [("elsa", "0700"), ("kestrel", "0830"), ("marit", "1145")]


@pytest.mark.parametrize(
    "answer",
    [
        TEXT,
        f"```tsv\n{TEXT}```",
        f"Here it is:\n```tsv\n{TEXT}```\nThat is all.",
        f"```tsv\n{TEXT}",
        f"{TEXT}That is the table.",
        TEXT.upper(),
    ],
)
def test_where_the_table_stands(answer: str) -> None:
    assert table(answer) == ROWS


@pytest.mark.parametrize("answer", ["", "  ", "boat\tleaves", "```tsv\n```", "a\tb\nonly one"])
def test_no_table(answer: str) -> None:
    assert table(answer) is None


def test_rows_of_another_width_are_empty_unless_last() -> None:
    assert table("a\tb\nx\n1\t2\nremark") == [("na", "na"), ("1", "2")]
    assert table('a\tb\n"x\ty\n1\t2') is None, "an open quote runs to the end, and nothing is left"


def test_overlap_by_hand() -> None:
    whole = overlap(ROWS, ROWS)
    assert (whole.precision, whole.recall, whole.f1) == (1.0, 1.0, 1.0)
    one_wrong = overlap([*ROWS[:2], ("marit", "1146")], ROWS)
    assert (one_wrong.precision, one_wrong.recall) == pytest.approx((2 / 3, 2 / 3))
    one_missing = overlap(ROWS[:2], ROWS)
    assert (one_missing.precision, one_missing.recall) == pytest.approx((1.0, 2 / 3))
    assert one_missing.f1 == pytest.approx(0.8)
    twice = overlap([*ROWS, ROWS[0]], ROWS)
    assert (twice.precision, twice.recall) == (1.0, 1.0)
    nothing = overlap([("x", "y")], ROWS)
    assert (nothing.precision, nothing.recall, nothing.f1) == (0.0, 0.0, 0.0)
    assert overlap(ROWS[::-1], ROWS).f1 == 1.0


def test_the_benchmarks_own_tables() -> None:
    rows = [row.values for row in read_rows(real("longform/longproc_html_to_tsv_0.5k_3.json"))]
    assert len(rows) == 3
    for values in rows:
        right = table(values["gt"])
        assert right is not None
        assert len(right) == values["gt"].strip().count("\n")
        assert table(f"```tsv\n{values['gt']}```") == right
        assert overlap(right[1:], right).recall == pytest.approx(1 - 1 / len(right))
