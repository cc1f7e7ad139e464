"""A record line to bytes and back: a line of ASCII JSON, finite numbers or null, no lone surrogate, a checksum last."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal

from vcbench.errors import RecordError, SchemaVersionError
from vcbench.records.schema import (
    CHECKED_SINCE,
    READABLE,
    BatchLine,
    DivergenceLine,
    Line,
    PromptLine,
    RequestLine,
    TurnLine,
)

CHECK = "check"
"""The last key of a line: the first 16 hex digits of the SHA-256 of the line as it stands without this key."""

KINDS: dict[str, type[Any]] = {
    "prompt": PromptLine,
    "request": RequestLine,
    "turn": TurnLine,
    "batch": BatchLine,
    "divergence": DivergenceLine,
}

LineKey = tuple[str, str, str, str]
"""(cell, task, request, kind): no two lines of a run share one."""


def line_key(line: Line) -> LineKey:
    """What a run may hold only once. A prompt has no cell; a batch is known by its requests."""
    match line:
        case PromptLine():
            return ("", line.task, line.request, line.kind)
        case BatchLine():
            return (line.cell, line.task, json.dumps(line.requests), line.kind)
        case _:
            return (line.cell, line.task, line.request, line.kind)


def describe_key(key: LineKey) -> str:
    """The key in words, for messages."""
    cell, task, request, kind = key
    named = [f"cell {cell!r}"] if cell else []
    return ", ".join([f"kind {kind!r}", *named, f"task {task!r}", f"request {request!r}"])


def escape_surrogates(text: str) -> str:
    r"""The text with each lone surrogate written out as `\udXXX`, so that it can be encoded and printed."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain(value: Any) -> Any:
    """The value as JSON holds it: NaN and infinities become None, lone surrogates are escaped, scalars are Python's.

    Raises TypeError on anything that JSON has no form for.
    """
    match value:
        case None | bool():
            return value
        case str():
            return escape_surrogates(value)
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {plain(str(key)): plain(item) for key, item in value.items()}
        case list() if set(map(type, value)) <= {int, bool}:
            return value
        case _ if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
            return [plain(item) for item in value]
        case _ if hasattr(value, "tolist"):
            return plain(value.tolist())
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


def encode(line: Line) -> bytes:
    """One line of ASCII with its newline. Raises RecordError where an identifier or a value has no faithful form."""
    row: dict[str, Any] = {}
    for entry in fields(line):
        value = getattr(line, entry.name)
        if entry.name in ("cell", "task", "request") and escape_surrogates(value) != value:
            raise RecordError(f"{entry.name} {value!a} holds a lone surrogate; rename it")
        try:
            row[entry.name] = plain(value)
        except TypeError as error:
            raise RecordError(f"{type(line).__name__}.{entry.name}: {error}") from error
        if entry.name == "timing":
            row["timing"] = {key: item for key, item in row["timing"].items() if item is not None}
    return seal(row) if line.schema >= CHECKED_SINCE else _compact(row) + b"\n"


def seal(row: Mapping[str, Any]) -> bytes:
    """One line of JSON that ends with its checksum, with its newline."""
    body = _compact({key: value for key, value in row.items() if key != CHECK})
    return body[:-1] + _suffix(body) + b"\n"


def _compact(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def _suffix(body: bytes) -> bytes:
    """What a checksum adds to a line in place of its closing brace."""
    return f',"{CHECK}":"{hashlib.sha256(body).hexdigest()[:16]}"}}'.encode("ascii")


def check_schema(schema: Any, where: str) -> int:
    """The schema version. Raises SchemaVersionError where this vcbench does not read it."""
    if type(schema) is not int or schema not in READABLE:
        versions = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
        raise SchemaVersionError(
            f"{where}: schema version {schema!r}, this vcbench reads {versions}; use the vcbench that wrote it, or run "
            "again: the same `vcbench run` moves this run aside"
        )
    return schema


def decode(data: bytes, where: str) -> Line:
    """The line that `encode` wrote. Raises RecordError with `where` on anything else."""
    try:
        row = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not a line of JSON ({error}); restore the file or run again") from error
    if not isinstance(row, dict):
        raise RecordError(f"{where}: a line must be a JSON object, found {type(row).__name__}")
    checked = check_schema(row.get("schema"), where) >= CHECKED_SINCE
    stated = row.pop(CHECK, None) if checked else None
    kind = row.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise RecordError(f"{where}: unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if b"\\ud" in data.lower():
        row = plain(row)
    _check_fields(row, where)
    if checked:
        _verify(data, stated, where)
    return typing.cast(Line, KINDS[kind](**row))


def _listed(versions: Sequence[int]) -> str:
    return f"{', '.join(map(str, versions[:-1]))} and {versions[-1]}"


def _verify(data: bytes, stated: Any, where: str) -> None:
    """Raises RecordError unless the line is, byte for byte, what was written."""
    whole = data.rstrip(b"\n")
    suffix = f',"{CHECK}":"{stated}"}}'.encode("ascii", "replace")
    body = whole.removesuffix(suffix) + b"}"
    if stated is None:
        raise RecordError(f"{where}: the line's checksum is missing: it is not as it was written")
    if not whole.endswith(suffix) or _suffix(body) != suffix:
        raise RecordError(f"{where}: the line's checksum does not fit: it is not as it was written")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"bare {name}")


@functools.cache
def _hints(kind: str) -> dict[str, tuple[Any, bool]]:
    """Type and whether it is required, by field name."""
    cls = KINDS[kind]
    hints = typing.get_type_hints(cls)
    return {
        entry.name: (hints[entry.name], entry.default is MISSING and entry.default_factory is MISSING)
        for entry in fields(cls)
    }


def _check_fields(row: dict[str, Any], where: str) -> None:
    hints = _hints(row["kind"])
    unknown = sorted(row.keys() - hints.keys())
    missing = sorted(name for name, (_, required) in hints.items() if required and name not in row)
    wrong = sorted(name for name in row.keys() & hints.keys() if not _fits(row[name], hints[name][0]))
    for words, names in (("unknown", unknown), ("missing", missing), ("wrong type of", wrong)):
        if names:
            raise RecordError(f"{where}: {words} field {', '.join(names)} in a {row['kind']} line")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of the annotated type; an int passes for a float, a bool for neither."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, argument) for argument in arguments)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if origin is not None and arguments == (int,):
        return isinstance(value, list) and set(map(type, value)) <= {int}
    if origin is not None:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if hint is float:
        return type(value) is int or (type(value) is float and math.isfinite(value))
    return type(value) is hint
