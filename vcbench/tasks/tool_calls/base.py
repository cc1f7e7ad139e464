"""What a tool-call format gives: calls, the text around them, and what should have been a call and is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from vcbench.tasks import json_values
from vcbench.tasks.json_values import NotJSONError, same
from vcbench.tasks.tool_calls.schema import plain_schema


@dataclass(frozen=True, slots=True, eq=False)
class ToolCall:
    """A call of a function with named arguments. Equal calls have the same arguments as JSON: true is not 1."""

    name: str
    arguments: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCall) and self.name == other.name and same(self.arguments, other.arguments)

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.arguments)))

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
    """What a function takes: the JSON schema of its parameters, in the words of `plain_schema`."""

    schema: Mapping[str, Any]

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """The signature in a declaration's JSON schema of `properties` and `required`."""
        return cls(plain_schema(parameters))

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """What `as_dict` gave; records before schema 3 hold the type of each parameter ("" for none) alone."""
        if "types" not in values:
            return cls(values["schema"])
        properties = {name: {"type": kind} if kind else {} for name, kind in values["types"].items()}
        return cls.of({"properties": properties, "required": list(values["required"])})

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"schema": dict(self.schema)}

    @property
    def types(self) -> dict[str, str]:
        """Each parameter's type by name: of several the first that is not null, "" where none is declared."""
        return {name: _type(schema) for name, schema in (self.schema.get("properties") or {}).items()}

    @property
    def required(self) -> tuple[str, ...]:
        """What a call must give."""
        return tuple(self.schema.get("required") or ())


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
    arguments = value[given[0]]
    if isinstance(arguments, str):
        arguments = _inner(arguments)
    if not isinstance(arguments, dict):
        raise CallError(f"`{given[0]}` must be an object, not {type(arguments).__name__}")
    return ToolCall(name, arguments)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, after white space, and where it ends. Raises CallError on all else."""
    try:
        return json_values.read_json(text, start)
    except NotJSONError as error:
        raise CallError(str(error)) from error


def _inner(text: str) -> Any:
    """The object that is written out in a text, as interfaces carry arguments and models imitate; else the text."""
    try:
        return json_values.whole_json(text)
    except NotJSONError:
        return text


def written(value: Any) -> str:
    """A value as JSON, in letters of its own language."""
    return json.dumps(value, ensure_ascii=False)


def _type(schema: Any) -> str:
    """A parameter's type; of several the first that is not null."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = kind if isinstance(kind, list) else [kind]
    return next((item for item in kinds if isinstance(item, str) and item != "null"), "")
