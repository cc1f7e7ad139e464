"""From a marked YAML mapping to the fields of a dataclass, by the dataclass's own types; problems are collected."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vcbench.config.limits import limits, within
from vcbench.config.marks import Node
from vcbench.errors import Problem
from vcbench.registry import suggest

BAD: Any = object()
"""Stands for a value that could not be read; the problem has been noted."""
LARGEST = 2**63 - 1
SHOWN = 60
TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,17}")
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(slots=True)
class Parsed:
    """The fields of `cls` that could be read, defaults included, and where the given ones were written.

    `values` holds `Parsed` (or lists and dicts of them) where the schema has dataclasses, and `BAD` for broken values.
    """

    cls: type[Any]
    where: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    rest: dict[str, Node] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The field's value, or None where it is missing or broken."""
        value = self.values.get(name)
        return None if value is BAD else value

    def place(self, name: str) -> str:
        """Where the field was written, else where the mapping begins."""
        return self.places.get(name, self.where)

    def build(self) -> Any:
        """The dataclass; only where nothing is broken."""
        return self.cls(**{name: _build(value) for name, value in self.values.items()})


def _build(value: Any) -> Any:
    if isinstance(value, Parsed):
        return value.build()
    if isinstance(value, tuple):
        return tuple(_build(item) for item in value)
    if isinstance(value, dict):
        return {key: _build(item) for key, item in value.items()}
    return value


def keys_of(cls: type[Any]) -> dict[str, tuple[Any, Field[Any]]]:
    """The keys that a mapping for `cls` may have, with type and field; `options` is written flat and so is none."""
    hints = get_type_hints(cls)
    return {
        f.name: (hints[f.name], f)
        for f in fields(cls)
        if f.name != "options" and f.init and not f.metadata.get("internal")
    }


@dataclass(slots=True)
class Reader:
    """Reads nodes; what is wrong goes to `problems`."""

    problems: list[Problem] = field(default_factory=list)

    def problem(self, where: str, message: str, suggestion: str = "") -> None:
        self.problems.append(Problem(where=where, message=message, suggestion=suggestion))

    def read(self, cls: type[Any], node: Node, label: str) -> Parsed:
        """The mapping `node` as fields of `cls`; keys that `cls` does not have are left in `rest`, unjudged."""
        parsed = Parsed(cls=cls, where=node.where)
        given = node.value if node.value is not None else {}
        if not isinstance(given, dict):
            self.problem(node.where, f"{label} must be a mapping of keys, not {_describe(given)}")
            parsed.values = dict.fromkeys(keys_of(cls), BAD)
            return parsed
        known = keys_of(cls)
        parsed.rest = {key: value for key, value in given.items() if key not in known}
        for name, (hint, spec) in known.items():
            if name in given:
                parsed.places[name] = given[name].where
                value = self.value(hint, given[name], f"`{name}`")
                parsed.values[name] = value if value is BAD or self.in_range(value, spec, given[name]) else BAD
            elif spec.default is MISSING and spec.default_factory is MISSING:
                self.problem(node.where, f"{label} lacks the key `{name}`", spec.metadata.get("doc", ""))
                parsed.values[name] = BAD
            else:
                parsed.values[name] = _default(hint, spec, node.where)
        return parsed

    def refuse_unknown(self, parsed: Parsed, choices: list[str], label: str) -> None:
        """Every key left in `rest` is a problem; `choices` are the keys that it could have been."""
        unsupported = getattr(parsed.cls, "UNSUPPORTED", ())
        for key, node in parsed.rest.items():
            if key in unsupported:
                self.problem(node.where, f"`{key}` in {label} is not supported, and nothing is ignored", "remove it")
                continue
            hint = "write the options beside the other keys" if key == "options" else suggest(key, sorted(choices))
            self.problem(node.where, f"unknown key `{key}` in {label}", hint)

    def in_range(self, value: Any, spec: Field[Any], node: Node) -> bool:
        if within(value, spec):
            return True
        self.problem(node.where, f"`{spec.name}` must be {' and '.join(limits(spec))}, not {value}")
        return False

    def value(self, hint: Any, node: Node, label: str) -> Any:
        """`node` as a value of the type `hint`, or `BAD`."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return self.union([argument for argument in arguments if argument is not type(None)], hint, node, label)
        if is_dataclass(hint):
            if node.value is not None and node.value == getattr(hint, "SHORTHAND", None):
                means = getattr(hint, "SHORTHAND_MEANS", {})
                node = Node(value={key: Node(value=means[key], where=node.where) for key in means}, where=node.where)
            key = getattr(hint, "FROM_TEXT", None)
            if key is not None and isinstance(node.value, str):
                node = Node(value={key: node}, where=node.where)
            parsed = self.read(hint, node, label)  # type: ignore[arg-type]
            if not _has_options(hint):
                self.refuse_unknown(parsed, list(keys_of(hint)), label)  # type: ignore[arg-type]
            return parsed
        if origin is Literal:
            return self.choice(arguments, node, label)
        if origin is tuple:
            return self.items(arguments[0], node, label)
        if origin is not None and issubclass(origin, Mapping):
            return self.mapping(arguments, node, label)
        return node.plain() if hint is Any else self.scalar(hint, node, label)

    def union(self, hints: list[Any], union: Any, node: Node, label: str) -> Any:
        if node.value is None and type(None) in get_args(union):
            return None
        attempt = Reader()
        for hint in hints:
            attempt = Reader()
            value = attempt.value(hint, node, label)
            if not attempt.problems:
                return value
        if len(hints) > 1 and not isinstance(node.value, dict):
            wanted, remedy = " or ".join(_kind(hint) for hint in hints), _remedy(hints[0], node.value)
            self.problem(node.where, f"{label} must be {wanted}, not {_describe(node.value)}", remedy)
        else:
            self.problems += attempt.problems
        return BAD

    def choice(self, choices: tuple[Any, ...], node: Node, label: str) -> Any:
        if node.value in choices and type(node.value) in {type(choice) for choice in choices}:
            return node.value
        names = [str(choice) for choice in choices]
        self.problem(node.where, f"{label} cannot be {_describe(node.value)}", suggest(str(node.value), names))
        return BAD

    def items(self, hint: Any, node: Node, label: str) -> Any:
        if not isinstance(node.value, list):
            self.problem(node.where, f"{label} must be a list, not {_describe(node.value)}", "begin each item with `-`")
            return BAD
        values = [self.value(hint, item, f"{label} item {index}") for index, item in enumerate(node.value)]
        return BAD if BAD in values else tuple(values)

    def mapping(self, hints: tuple[Any, ...], node: Node, label: str) -> Any:
        """A mapping from names or, where the first of `hints` is int, from token ids."""
        given = {} if node.value is None else node.value
        if not isinstance(given, dict):
            what = "token ids" if hints[0] is int else "names"
            self.problem(node.where, f"{label} must be a mapping of {what}, not {_describe(given)}")
            return BAD
        if hints[0] is not int:
            return {key: self.value(hints[1], item, f"`{key}`") for key, item in given.items()}
        wrong = [key for key in given if not TOKEN_ID.fullmatch(key)]
        for key in wrong:
            self.problem(given[key].where, f"{label} has the key {key!r}, which is no token id")
        values = {int(key): self.value(hints[1], given[key], f"{label} of {key}") for key in given if key not in wrong}
        return BAD if wrong or BAD in values.values() else values

    def scalar(self, hint: type[Any], node: Node, label: str) -> Any:
        value = node.value
        if type(value) is int and abs(value) > LARGEST:
            self.problem(node.where, f"{label} is beyond 64 bits")
            return BAD
        if hint is float and type(value) is int:
            value = float(value)
        if type(value) is not hint:
            self.problem(node.where, f"{label} must be {WORDS[hint]}, not {_describe(value)}", _remedy(hint, value))
            return BAD
        if hint is float and not math.isfinite(value):
            self.problem(node.where, f"{label} must be finite, not {value}")
            return BAD
        if hint is str and any("\ud800" <= character <= "\udfff" for character in value):
            self.problem(node.where, f"{label} holds half of a surrogate pair, which is no text", "write the character")
            return BAD
        return value


def _kind(hint: Any) -> str:
    """A type in words."""
    if not is_dataclass(hint):
        return WORDS[hint]
    shorthand = getattr(hint, "SHORTHAND", None)
    if getattr(hint, "FROM_TEXT", None) is not None:
        return "a name or a mapping"
    return f"`{shorthand}` or a mapping" if shorthand else "a mapping"


def _has_options(cls: Any) -> bool:
    return any(f.name == "options" for f in fields(cls))


def _default(hint: Any, spec: Field[Any], where: str) -> Any:
    value = spec.default_factory() if spec.default_factory is not MISSING else spec.default
    if is_dataclass(value):
        values = {name: _default(inner, f, where) for name, (inner, f) in keys_of(hint).items()}
        return Parsed(cls=hint, where=where, values=values)
    return value


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= SHOWN else f"the text {value[:SHOWN]!r}..."
    return str(value)


def _remedy(hint: type[Any], value: Any) -> str:
    if isinstance(value, str) and hint in (int, float) and _is_number(value):
        return "1e-3 is text in YAML: write 1.0e-3" if "e" in value.lower() else "remove the quotes"
    if hint is str and not isinstance(value, (dict, list, type(None))):
        return "put it in quotes"
    if hint is int and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    return "give a value or remove the key" if value is None else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
