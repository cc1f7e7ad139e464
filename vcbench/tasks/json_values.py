"""JSON values: when two are the same, and what a text stands for."""

from __future__ import annotations

import ast
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


class NotJSONError(ValueError):
    """Why a text is no JSON value."""


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same as JSON has them: types count, at any depth, and 1 is 1.0 but not true.

    Numbers are compared exactly, whole ones beyond 2^53 too; NaN, which JSON does not have, is the same as itself.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        theirs = {_key(key): value for key, value in b.items()}
        return len(a) == len(b) and all(
            _key(key) in theirs and same(value, theirs[_key(key)]) for key, value in a.items()
        )
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if _kind(a) != _kind(b):
        return False
    return bool(a == b) or (a != a and b != b)


def read_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at `start`, after white space, and where it ends.

    Raises NotJSONError on anything else, on a key given twice, and on numbers that are not finite.
    """
    try:
        return _DECODER.raw_decode(text, skip_space(text, start))
    except (ValueError, RecursionError) as error:
        raise NotJSONError(f"not JSON: {error}") from error


def whole_json(text: str) -> Any:
    """The JSON value that a text is, white space at its ends aside. Raises NotJSONError."""
    value, end = read_json(text)
    if skip_space(text, end) != len(text):
        raise NotJSONError("not JSON: something follows it")
    return value


def python_literal(text: str) -> Any:
    """What a literal of Python's is as JSON: tuples as lists, keys as texts; `true`, `false` and `null` may be in it.

    Raises NotJSONError on anything else, and on what JSON cannot hold.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
            value = ast.literal_eval(_Named().visit(tree))
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise NotJSONError(f"not a literal: {error}") from error


def skip_space(text: str, start: int) -> int:
    """Where white space from `start` on ends."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start


class _Named(ast.NodeTransformer):
    """JSON's words as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(WORDS[node.id]), node) if node.id in WORDS else node


def _kind(value: Any) -> type:
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, int | float) else type(value)


def _key(key: Any) -> tuple[type, Any]:
    return _kind(key), key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return made


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"bare {name}")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
