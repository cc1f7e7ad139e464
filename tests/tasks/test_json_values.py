"""JSON values keep their types when they are compared, at any depth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.tasks.cfb.rules import is_same
from vcbench.tasks.json_values import NotJSONError, python_literal, read_json, same, whole_json
from vcbench.tasks.tool_calls.base import ToolCall, same_calls

NAN = float("nan")
EQUAL: list[tuple[Any, Any]] = [
    (1, 1.0), (0.0, -0.0), ([1, {"a": 2.0}], [1.0, {"a": 2}]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ((1, 2), [1, 2]),
    (2**53, float(2**53)), (NAN, NAN), ([NAN], [float("nan")]), (None, None), (True, True), ("", ""), ({}, {}),
]  # fmt: skip
DIFFERENT: list[tuple[Any, Any]] = [
    (True, 1), (False, 0), (True, 1.0), ([True], [1]), ({"a": [{"b": False}]}, {"a": [{"b": 0}]}), (True, "true"),
    (1, "1"), (None, False), (None, ""), (None, 0), ([], {}), ([], ()[:0] or ""), ({}, []), (2**53 + 1, float(2**53)),
    (10**400, 1e308), (NAN, 1.0), (NAN, None), ([1], [1, 1]), ({"a": 1}, {"a": 1, "b": None}), ({True: 1}, {1: 1}),
    ({"1": 1}, {1: 1}), ("é", "e\u0301"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_the_same(a: Any, b: Any) -> None:
    assert same(a, b)
    assert same(b, a)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_not_the_same(a: Any, b: Any) -> None:
    assert not same(a, b)
    assert not same(b, a)


@pytest.mark.parametrize(
    ("a", "b", "expected"), [*((a, b, True) for a, b in EQUAL), *((a, b, False) for a, b in DIFFERENT)]
)
def test_calls_are_compared_so_everywhere(a: Any, b: Any, expected: bool) -> None:
    """`same_calls`, `exact_calls` and the rules of ComplexFuncBench."""
    ours, theirs = ToolCall("f", {"x": a}), ToolCall("f", {"x": b})

    assert (ours == theirs) is expected
    assert same_calls([ours], [theirs]) is expected
    assert same_calls([ours, ToolCall("g", {})], [ToolCall("g", {}), theirs]) is expected
    assert is_same(ours, theirs) is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_is_written_out_is_the_same_again(value: Any) -> None:
    assert same(whole_json(json.dumps(value)), value)
    assert same(python_literal(repr(value)), value)


@given(JSON, JSON)
def test_same_values_have_the_same_text_but_for_numbers(a: Any, b: Any) -> None:
    if json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True):
        assert same(a, b)


@pytest.mark.parametrize("text", ["1e400", "[-1e999]", "NaN", "Infinity", '{"a": 1, "a": 1}', "1 2", "", "[" * 100_000])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(NotJSONError):
        whole_json(text)


def test_a_value_within_a_text() -> None:
    assert read_json('x {"a": [1]} y', 1) == ({"a": [1]}, 12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("['a']", ["a"]),
        ("{'on': True, 'off': None}", {"on": True, "off": None}),
        ("{'on': true, 'x': null}", {"on": True, "x": None}),
        ("[1, 2,]", [1, 2]),
        ("(1, 'x')", [1, "x"]),
        ("{1: 'a'}", {"1": "a"}),
        ("'\\d'", "\\d"),
    ],
)
def test_literals_of_python(text: str, value: Any) -> None:
    assert same(python_literal(text), value)


@pytest.mark.parametrize(
    "text",
    ["{1, 2}", "b'x'", "1j", "...", "f(1)", "__import__('os')", "x", "1e999", "[" * 5000, "{[]: 1}", "a\0", "2-1"],
)
def test_what_is_no_literal(text: str) -> None:
    with pytest.raises(NotJSONError):
        python_literal(text)
