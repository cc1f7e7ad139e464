"""Rows of local data files: JSON lines, a JSON array or parquet; every fault names file, place and field.

Rows are read as they are asked for. One that is damaged costs no other: it comes too, and refuses when it is looked at.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vcbench.errors import RowError, TaskError
from vcbench.registry import suggest

PARQUET = b"PAR1"
BATCH_ROWS = 64


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
        """Raises RowError with file and place."""
        raise RowError(f"{self.where}: {message}")

    def has(self, field: str) -> bool:
        """Whether the row has the field with something other than null."""
        return self.values.get(field) is not None

    def value(self, field: str) -> Any:
        """The field's value. Raises RowError where the row is without it."""
        if field not in self.values:
            names = ", ".join(f"`{name}`" for name in self.values) or "none"
            near = suggest(field, list(self.values))
            hint = f"; {near}" if near.startswith("did you mean") else ""
            self.refuse(f"field `{field}` is missing; the fields here are {names}{hint}")
        return self.values[field]

    def text(self, field: str, *, empty: bool = False) -> str:
        """The field's text. Raises RowError where it is missing, something else, or empty unless `empty` is true."""
        value = self.value(field)
        if not isinstance(value, str):
            self.refuse(f"field `{field}` must be a text, not {_kind(value)}")
        if not value.strip() and not empty:
            self.refuse(f"field `{field}` is empty")
        return value

    def items(self, field: str) -> list[Any]:
        """The field's list. Raises RowError where it is missing or something else."""
        value = self.value(field)
        if not isinstance(value, list):
            self.refuse(f"field `{field}` must be a list, not {_kind(value)}")
        return value

    def identifier(self, field: str) -> str:
        """The field as an id: a text, or a whole number written out. Raises RowError on all else."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            self.refuse(f"field `{field}` must be a text or a whole number, not {json.dumps(value)}")
        return str(value)

    def messages(self, field: str) -> list[dict[str, Any]]:
        """The field's conversation, whose `content` may be a text or a list of text parts; both are used in the wild.

        Raises RowError where it is no list of objects with a `role`, or a content holds anything but text.
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


class _Damaged(Mapping[str, Any]):
    """The values of a row that has none: whoever looks at them is told why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getitem__(self, key: str) -> NoReturn:
        raise RowError(self.reason)

    def __iter__(self) -> NoReturn:
        raise RowError(self.reason)

    def __len__(self) -> NoReturn:
        raise RowError(self.reason)


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a file, told apart by its first bytes; blank lines are skipped.

    Raises TaskError if the file cannot be read. A row that is malformed raises RowError where its values are used.
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

    A row without a usable id is named by its place, and damaged. Raises TaskError on a repeated id, with both places.
    """
    places: dict[str, str] = {}
    for row in rows:
        place = row.place.replace(" ", "-")
        try:
            given = next((field for field in fields if field in row.values), None)
            name = place if given is None and numbered else row.identifier(given or fields[0])
        except RowError as error:
            yield place, _damaged(row.where, row.number, row.data, str(error))
            continue
        if name in places:
            kind, other = row.place.split()[0], places[name]
            raise TaskError(
                f"{row.where}: {given or fields[0]} {name!r} is that of {other} already; give each {kind} its own"
            )
        places[name] = row.place
        yield name, row


def mapping_rows(mappings: Iterable[Mapping[str, Any]], source: str) -> Iterator[Row]:
    """Rows of a table that was read by another library. One with a value that JSON cannot hold is damaged."""
    for number, values in enumerate(mappings, start=1):
        where = f"{source}, row {number}"
        try:
            data = json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
        except ValueError as error:
            yield _damaged(where, number, b"", f"{where}: holds a number that is not finite ({error})")
        else:
            yield _row(where, number, data.encode("utf-8", "surrogatepass"), json.loads(data))


def _line_rows(path: Path, data: bytes) -> Iterator[Row]:
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            values = _parsed(where, line, "a line of JSON")
        except TaskError as error:
            yield _damaged(where, number, line.strip(), str(error))
        else:
            yield _object(where, number, line.strip(), values, "a line")


def _array_rows(path: Path, data: bytes) -> Iterator[Row]:
    for number, values in enumerate(_parsed(str(path), data, "a JSON array"), start=1):
        canonical = json.dumps(values, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
        yield _object(f"{path}, row {number}", number, canonical, values, "an item")


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TaskError(f"{path} is parquet, which needs pyarrow: pip install 'vcbench[tasks]'") from error

    def mappings() -> Iterator[Mapping[str, Any]]:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=BATCH_ROWS):
                    yield from batch.to_pylist()
        except (OSError, pyarrow.ArrowException) as error:
            raise TaskError(f"{path} is not a parquet file that can be read: {error}") from error

    yield from mapping_rows(mappings(), str(path))


def _parsed(where: str, data: bytes, what: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: not {what} ({error})") from error


def _object(where: str, number: int, data: bytes, values: Any, what: str) -> Row:
    if isinstance(values, dict):
        return _row(where, number, data, values)
    return _damaged(where, number, data, f"{where}: {what} must be a JSON object, not {type(values).__name__}")


def _row(where: str, number: int, data: bytes, values: Mapping[str, Any]) -> Row:
    if (field_name := _surrogate(values)) is None:
        return Row(where, number, data, values)
    reason = f"field `{field_name}` holds a lone surrogate, which no tokenizer can encode; remove it"
    return _damaged(where, number, data, f"{where}: {reason}")


def _damaged(where: str, number: int, data: bytes, reason: str) -> Row:
    return Row(where, number, data, _Damaged(reason))


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
