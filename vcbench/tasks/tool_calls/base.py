"""What a tool-call format gives: calls, the text around them, and what should have been a call and is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function with named arguments."""

    name: str
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The call in a mapping of `name` and `arguments`, as data sets and records hold it."""
        return cls(values["name"], values["arguments"])

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"name": self.name, "arguments": dict(self.arguments)}


@dataclass(frozen=True, slots=True)
class Parsed:
    """An answer taken apart. `text`: what is outside of calls, without reasoning; `errors`: one per broken call."""

    calls: tuple[ToolCall, ...]
    text: str
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes: the JSON type of each parameter by name ("" where none is declared), and what it needs."""

    types: Mapping[str, str]
    required: tuple[str, ...] = ()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """The signature in a JSON schema of `properties` and `required`."""
        properties = parameters.get("properties") or {}
        types = {name: _type(schema) for name, schema in properties.items()}
        return cls(types, tuple(parameters.get("required") or ()))

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """What `as_dict` gave."""
        return cls(values["types"], tuple(values["required"]))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"types": dict(self.types), "required": list(self.required)}


Signatures = Mapping[str, Signature]


class CallError(Exception):
    """Why something is no call."""


class Format(Protocol):
    """A module of this package that reads and writes one format. `OPENING`: how an answer with a call begins."""

    OPENING: str

    def parse(self, text: str, signatures: Signatures) -> Parsed:
        """The calls of an answer. `signatures` type values where the format writes all of them as text."""

    def write(self, calls: Sequence[ToolCall]) -> str:
        """The calls as a model would write them."""


def same_calls(calls: Sequence[ToolCall], others: Sequence[ToolCall]) -> bool:
    """Whether both hold the same calls, each as often, in any order."""
    left = list(others)
    for call in calls:
        if call not in left:
            return False
        left.remove(call)
    return not left


def declaration_fault(function: Any) -> tuple[str, str] | None:
    """Which part of a function's declaration is malformed, as a suffix of its field, and how; None if none is."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return "", "must be an object with a `name`"
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, dict) or not isinstance(parameters.get("properties") or {}, dict):
        return ".parameters", "must be a JSON schema with `properties`"
    required = parameters.get("required") or []
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return ".parameters.required", "must be a list of names"
    return None


def call_of(value: Any, *keys: str) -> ToolCall:
    """The call in a decoded object whose arguments stand under one of `keys`. Raises CallError."""
    if not isinstance(value, dict):
        raise CallError(f"a call must be a JSON object, not {type(value).__name__}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise CallError("a call needs a `name`")
    given = [key for key in keys if key in value]
    if len(given) != 1:
        raise CallError(f"a call needs {' or '.join(f'`{key}`' for key in keys)}, once")
    if not isinstance(value[given[0]], dict):
        raise CallError(f"`{given[0]}` must be an object, not {type(value[given[0]]).__name__}")
    return ToolCall(name, value[given[0]])


def read_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, after white space, and where it ends.

    Raises CallError on anything else, on a key given twice, and on NaN, which JSON does not have.
    """
    begin = skip_space(text, start)
    try:
        return _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        raise CallError(f"not JSON: {error}") from error


def skip_space(text: str, start: int) -> int:
    """Where white space from `start` on ends."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def written(value: Any) -> str:
    """A value as JSON, in letters of its own language."""
    return json.dumps(value, ensure_ascii=False)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"bare {name}")


def _type(schema: Any) -> str:
    """A parameter's type; of several the first that is not null."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = kind if isinstance(kind, list) else [kind]
    return next((item for item in kinds if isinstance(item, str) and item != "null"), "")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
