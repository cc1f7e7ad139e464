"""Rows of local data files: JSON lines, a JSON array or parquet; every fault names file, place and field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vcbench.errors import TaskError
from vcbench.registry import suggest

PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands. `data`: the bytes that `values` was read from, or its canonical JSON.

    `number` counts lines in a file of JSON lines, and rows everywhere else, from 1.
    """

    where: str
    number: int
    data: bytes
    values: Mapping[str, Any]

    @property
    def place(self) -> str:
        """`line 3` or `row 3`: where the row stands in its file."""
        return self.where.rpartition(", ")[2]

    def refuse(self, message: str) -> NoReturn:
        """Raises TaskError with file and place."""
        raise TaskError(f"{self.where}: {message}")

    def has(self, field: str) -> bool:
        """Whether the row has the field with something other than null."""
        return self.values.get(field) is not None

    def value(self, field: str) -> Any:
        """The field's value. Raises TaskError where the row is without it."""
        if field not in self.values:
            names = ", ".join(f"`{name}`" for name in self.values) or "none"
            near = suggest(field, list(self.values))
            hint = f"; {near}" if near.startswith("did you mean") else ""
            self.refuse(f"field `{field}` is missing; the fields here are {names}{hint}")
        return self.values[field]

    def text(self, field: str, *, empty: bool = False) -> str:
        """The field's text. Raises TaskError where it is missing, something else, or empty unless `empty` is true."""
        value = self.value(field)
        if not isinstance(value, str):
            self.refuse(f"field `{field}` must be a text, not {_kind(value)}")
        if not value.strip() and not empty:
            self.refuse(f"field `{field}` is empty")
        return value

    def items(self, field: str) -> list[Any]:
        """The field's list. Raises TaskError where it is missing or something else."""
        value = self.value(field)
        if not isinstance(value, list):
            self.refuse(f"field `{field}` must be a list, not {_kind(value)}")
        return value

    def identifier(self, field: str) -> str:
        """The field as an id: a text, or a whole number written out. Raises TaskError on all else."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            self.refuse(f"field `{field}` must be a text or a whole number, not {json.dumps(value)}")
        return str(value)

    def messages(self, field: str) -> list[dict[str, Any]]:
        """The field's conversation, whose `content` may be a text or a list of text parts; both are used in the wild.

        Raises TaskError where it is no list of objects with a `role`, or a content holds anything but text.
        """
        messages = self.items(field)
        for number, message in enumerate(messages):
            name = f"{field}[{number}]"
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                self.refuse(f"field `{name}` must be an object with a `role`")
            content = message.get("content")
            if isinstance(content, list) and content:
                for index, part in enumerate(content):
                    _check_part(self, f"{name}.content[{index}]", part)
            elif not isinstance(content, str) and not message.get("tool_calls"):
                self.refuse(f"field `{name}.content` must be a text or a list of text parts")
        return messages


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a file, told apart by its first bytes; blank lines are skipped.

    Raises TaskError if the file cannot be read, or with the place of the first row that is malformed.
    """
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}; check the task's `path`") from error
    if data.startswith(PARQUET):
        yield from _parquet_rows(path)
    elif data.lstrip().startswith(b"["):
        yield from _array_rows(path, data)
    else:
        yield from _line_rows(path, data)


def identified(rows: Iterable[Row], *fields: str, numbered: bool = False) -> Iterator[tuple[str, Row]]:
    """The rows with their ids, from the first of `fields` that a row has; `numbered` names the others by their place.

    Raises TaskError on a malformed or missing id, and on a repeated one with both places.
    """
    places: dict[str, str] = {}
    for row in rows:
        given = next((field for field in fields if field in row.values), None)
        unnamed = given is None and numbered
        name = row.place.replace(" ", "-") if unnamed else row.identifier(given or fields[0])
        if name in places:
            kind, other = row.place.split()[0], places[name]
            row.refuse(f"{given or fields[0]} {name!r} is that of {other} already; give each {kind} its own")
        places[name] = row.place
        yield name, row


def mapping_rows(mappings: Iterable[Mapping[str, Any]], source: str) -> Iterator[Row]:
    """Rows of a table that was read by another library. Raises TaskError on a value that JSON cannot hold."""
    for number, values in enumerate(mappings, start=1):
        where = f"{source}, row {number}"
        try:
            data = json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
        except ValueError as error:
            raise TaskError(f"{where}: holds a number that is not finite ({error})") from error
        yield _row(where, number, data.encode("utf-8", "surrogatepass"), json.loads(data))


def _line_rows(path: Path, data: bytes) -> Iterator[Row]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        values = _parsed(where, line, "a line of JSON")
        if not isinstance(values, dict):
            raise TaskError(f"{where}: a line must be a JSON object, not {type(values).__name__}")
        yield _row(where, number, line.strip(), values)


def _array_rows(path: Path, data: bytes) -> Iterator[Row]:
    items = _parsed(str(path), data, "a JSON array")
    for number, values in enumerate(items, start=1):
        where = f"{path}, row {number}"
        if not isinstance(values, dict):
            raise TaskError(f"{where}: an item must be a JSON object, not {type(values).__name__}")
        canonical = json.dumps(values, sort_keys=True, ensure_ascii=False)
        yield _row(where, number, canonical.encode("utf-8", "surrogatepass"), values)


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TaskError(f"{path} is parquet, which needs pyarrow: pip install 'vcbench[tasks]'") from error
    try:
        mappings = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskError(f"{path} is not a parquet file that can be read: {error}") from error
    yield from mapping_rows(mappings, str(path))


def _parsed(where: str, data: bytes, what: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: not {what} ({error})") from error


def _row(where: str, number: int, data: bytes, values: Mapping[str, Any]) -> Row:
    row = Row(where, number, data, values)
    if (field_name := _surrogate(values)) is not None:
        row.refuse(f"field `{field_name}` holds a lone surrogate, which no tokenizer can encode; remove it")
    return row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"bare {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return made


def _surrogate(values: Mapping[str, Any]) -> str | None:
    """The first field with a lone surrogate anywhere inside."""
    for key, value in values.items():
        # The escapes of ensure_ascii would hide what this looks for.
        text = key + json.dumps(value, ensure_ascii=False)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return key.encode("ascii", "backslashreplace").decode()
    return None


def _check_part(row: Row, name: str, part: Any) -> None:
    if isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str)):
        return
    kind = part.get("type", "no type") if isinstance(part, dict) else _kind(part)
    row.refuse(f"field `{name}` must be a text part, not {kind!r}; only text is supported")


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
