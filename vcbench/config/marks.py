"""YAML in which every value knows where it was written, so that a problem can name its line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from vcbench.errors import ConfigError, Problem

MAX_VALUES = 100_000
MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(slots=True)
class Node:
    """A YAML value: a scalar, a `list[Node]` or a `dict[str, Node]`; in a mapping, `where` is the key's line."""

    value: Any
    where: str

    def plain(self) -> Any:
        """The value without its places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


def read_yaml(text: str, place: Callable[[int], str], problems: list[Problem]) -> Node:
    """The document in `text`; `place` turns a line number (from 1) into words.

    Duplicate and non-text keys, broken scalars and recursive aliases are added to `problems`.

    Raises:
        ConfigError: the text is no YAML, so that nothing in it can be judged.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return Node(value=None, where=place(1))
        return _Marker(loader=loader, place=place, problems=problems).convert(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ConfigError([_syntax(place(line), reason)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError([_syntax(place(line), f"the character U+{error.character:04X} is not allowed")]) from error
    except RecursionError as error:
        raise ConfigError([Problem(where=place(1), message="the values are nested too deeply")]) from error


def _syntax(where: str, reason: str) -> Problem:
    return Problem(where=where, message=f"this is not valid YAML: {reason}", suggestion="check quotes and indentation")


@dataclass(slots=True)
class _Marker:
    loader: Any
    place: Callable[[int], str]
    problems: list[Problem]
    open: set[int] = field(default_factory=set)
    count: int = 0

    def where(self, node: yaml.Node) -> str:
        return self.place(node.start_mark.line + 1)

    def problem(self, where: str, message: str, suggestion: str = "") -> None:
        self.problems.append(Problem(where=where, message=message, suggestion=suggestion))

    def convert(self, node: yaml.Node, where: str | None = None) -> Node:
        """`node` with its place; aliases are expanded, up to `MAX_VALUES` values in all."""
        where = where or self.where(node)
        self.count += 1
        if self.count > MAX_VALUES:
            raise ConfigError([Problem(where=where, message=f"more than {MAX_VALUES} values, aliases expanded")])
        if id(node) in self.open:
            self.problem(where, "an alias refers to the value that it is part of", "write the value out")
            return Node(value=None, where=where)
        self.open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            value: Any = self.mapping(node)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.convert(item) for item in node.value]
        else:
            value = self.scalar(node)
        self.open.discard(id(node))
        return Node(value=value, where=where)

    def scalar(self, node: yaml.Node) -> Any:
        try:
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # A forced tag (`!!int`, `!!timestamp`) on a value of another kind fails inside PyYAML in all these ways.
            reason = getattr(error, "problem", None) or str(error)
            self.problem(self.where(node), f"the value {str(node.value)[:40]!r} cannot be read: {reason}")
            return None

    def mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            where = self.where(key_node)
            if key_node.tag == MERGE_TAG:
                self.merge(value_node, merged)
                continue
            key = self.scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                self.problem(where, f"keys are text, not {key_node.value!r}"[:120], "put the key in quotes")
            elif key in own:
                self.problem(where, f"key {key!r} is given twice, first at {own[key].where}", "remove one of them")
            else:
                own[key] = self.convert(value_node, where)
        return {**merged, **own}

    def merge(self, node: yaml.Node, into: dict[str, Node]) -> None:
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            converted = self.convert(part)
            if not isinstance(converted.value, dict):
                self.problem(converted.where, "`<<` takes a mapping or a list of mappings")
                continue
            for key, value in converted.value.items():
                into.setdefault(key, value)
