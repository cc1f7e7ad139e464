"""Rows of three kinds of file, and every fault named with its place and field."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from vcbench.errors import RowError, TaskError
from vcbench.tasks.rows import Row, identified, mapping_rows, read_rows

ROWS = [{"id": "a", "n": 1, "text": "é"}, {"id": "b", "n": None, "text": "y"}]


def row(**values: Any) -> Row:
    return Row("f.jsonl, line 4", 4, b"", values)


def test_three_kinds_of_file_are_told_apart_by_their_content(tmp_path: Path) -> None:
    lines = tmp_path / "lines.json"
    lines.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS))
    array = tmp_path / "array.jsonl"
    array.write_text("\ufeff \n" + json.dumps(ROWS, indent=1))
    table = tmp_path / "table"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), table)
    for path, place in ((lines, "line 2"), (array, "row 2"), (table, "row 2")):
        read = list(read_rows(path))
        assert [row.values for row in read] == ROWS
        assert (read[1].where, read[1].place, read[1].number) == (f"{path}, {place}", place, 2)
        assert json.loads(read[0].data) == ROWS[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'[{"id": 1}, 3]', "row 2: an item must be a JSON object, not int"),
        (b'[{"id": 1},\n {"id": ]', r"not a JSON array \(Expecting value: line 2"),
        (b'[{"id": Infinity}]', r"not a JSON array \(bare Infinity\)"),
        (b'[{"id": "\\ud800"}]', "row 1: field `id` holds a lone surrogate"),
        (b'{"id": 1}\n{"id": 1, "id": 2}', r"line 2: not a line of JSON \(key 'id' is given twice\)"),
        (b"PAR1 but not parquet", "is not a parquet file that can be read"),
    ],
)
def test_malformed_files(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(TaskError, match=says):
        [dict(row.values) for row in read_rows(tmp_path / "rows")]


def test_a_damaged_row_refuses_however_it_is_looked_at_and_the_next_one_comes(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b'{"id": 1}\n{"id": \n{"id": 3}\n')
    first, damaged, third = read_rows(path)
    looks: list[Callable[[], object]] = [
        lambda: damaged.value("id"),
        lambda: damaged.has("id"),
        lambda: damaged.text("id"),
        lambda: damaged.identifier("id"),
        lambda: damaged.values.get("id"),
        lambda: "id" in damaged.values,
        lambda: dict(damaged.values),
        lambda: {**damaged.values},
        lambda: bool(damaged.values),
    ]
    for look in looks:
        with pytest.raises(RowError, match=r"rows, line 2: not a line of JSON"):
            look()
    assert (first.values, third.values) == ({"id": 1}, {"id": 3})
    assert [name for name, _ in identified(read_rows(path), "id")] == ["1", "line-2", "3"]
    assert [name for name, _ in identified(read_rows(path), "key")] == ["line-1", "line-2", "line-3"]


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "table"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"id": i} for i in range(1000)]), path, row_group_size=10)
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 64] = b"\0" * 64
    path.write_bytes(data)
    assert next(read_rows(path)).values == {"id": 0}


def test_values_that_json_lacks() -> None:
    (found,) = mapping_rows([{"when": datetime(2026, 1, 2)}], "set")
    assert found.values == {"when": "2026-01-02 00:00:00"}
    with pytest.raises(TaskError, match=r"set, row 2: holds a number that is not finite"):
        [dict(row.values) for row in mapping_rows([{"x": 1.0}, {"x": float("nan")}], "set")]


def test_repeated_ids_name_both_places(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"k": 1}\n\n{"k": "x"}\n{"k": "1"}\n')
    rows = identified(read_rows(path), "k")
    assert [name for name, _ in (next(rows), next(rows))] == ["1", "x"]
    with pytest.raises(TaskError, match=r"rows.jsonl, line 4: k '1' is that of line 1 already; give each line"):
        next(rows)


def test_typed_fields() -> None:
    given = row(patch="diff", empty=" ", n=3, none=None, parts=["a"])
    assert given.text("patch") == "diff"
    assert given.text("empty", empty=True) == " "
    assert given.items("parts") == ["a"]
    assert given.identifier("n") == "3"
    assert (given.has("n"), given.has("none"), given.has("other")) == (True, False, False)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda r: r.text("pacth"), "field `pacth` is missing; the fields here are `patch`, `n`; did you mean 'patch'"),
        (lambda r: r.text("zzz"), "field `zzz` is missing; the fields here are `patch`, `n`$"),
        (lambda r: r.text("n"), "field `n` must be a text, not null"),
        (lambda r: r.text("patch"), "field `patch` is empty"),
        (lambda r: r.items("patch"), "field `patch` must be a list, not str"),
        (lambda r: r.identifier("patch"), 'field `patch` must be a text or a whole number, not ""'),
    ],
)
def test_field_faults(ask: Any, says: str) -> None:
    with pytest.raises(TaskError, match=rf"^f.jsonl, line 4: {says}"):
        ask(row(patch="", n=None))


def test_conversations_of_mixed_content() -> None:
    mixed = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": ["b", {"type": "text", "text": "c"}]},
        {"role": "assistant", "tool_calls": [{}]},
    ]
    assert row(messages=mixed).messages("messages") == mixed


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("x", r"field `messages\[0\]` must be an object with a `role`"),
        ({"role": "user", "content": []}, r"field `messages\[0\].content` must be a text or a list of text parts"),
        ({"role": "user", "content": {"a": 1}}, r"field `messages\[0\].content` must be"),
        (
            {"role": "user", "content": ["a", {"type": "image_url"}]},
            r"field `messages\[0\].content\[1\]` must be a text part, not 'image_url'; only text is supported",
        ),
        ({"role": "user", "content": [3]}, r"content\[0\]` must be a text part, not 'int'"),
    ],
)
def test_conversations_refused(message: Any, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        row(messages=[message]).messages("messages")
