"""When a call is right, wrong for certain, or for a judge; each rule by an example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.real_data import real
from vcbench.tasks.cfb.exact_arguments import EXACT_ARGUMENTS, FREE_FUNCTIONS
from vcbench.tasks.cfb.rules import align, definite_error, format_problem, is_same
from vcbench.tasks.tool_calls.base import Signature, ToolCall

GOLDEN = ToolCall("Search_Hotels", {"dest_id": "20033173", "adults": 1, "categories_filter": "class::4,free::2"})
SIGNATURES = {
    "f": Signature.load(
        {
            "types": {"s": "string", "n": "number", "i": "integer", "b": "boolean", "a": "array", "o": "object"},
            "required": ("s",),
        }
    )
}


def changed(**arguments: Any) -> ToolCall:
    merged = {**GOLDEN.arguments, **arguments}
    return ToolCall(GOLDEN.name, {key: value for key, value in merged.items() if value is not ...})


@pytest.mark.parametrize(
    ("call", "same", "error"),
    [
        (GOLDEN, True, None),
        (ToolCall(GOLDEN.name, dict(reversed(GOLDEN.arguments.items()))), True, None),
        (changed(adults=1.0), True, None),
        (changed(categories_filter="free::2 , class::4"), True, None),
        (changed(categories_filter="class::4"), False, "value_error"),
        (changed(categories_filter=3), False, "value_error"),
        (changed(dest_id="1"), False, "value_error"),
        (changed(dest_id=20033173), False, "value_error"),
        (changed(dest_id=...), False, "param_missing"),
        (ToolCall("Get_Filter", GOLDEN.arguments), False, "func_error"),
        (changed(adults=2), False, None),
        (changed(adults=...), False, None),
        (changed(page_number=1), False, None),
    ],
)
def test_tiers(call: ToolCall, same: bool, error: str | None) -> None:
    assert is_same(call, GOLDEN) is same
    if not same:
        assert definite_error(call, GOLDEN, EXACT_ARGUMENTS) == error


def test_a_function_outside_the_table_is_always_for_a_judge() -> None:
    golden = ToolCall("own", {"a": 1})
    assert definite_error(ToolCall("own", {"a": 2}), golden, EXACT_ARGUMENTS) is None


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (ToolCall("f", {"s": "x"}), None),
        (ToolCall("g", {"s": "x"}), "func_error"),
        (ToolCall("f", {"n": 1}), "param_missing"),
        (ToolCall("f", {"s": "x", "z": 1}), "hallucination"),
        (ToolCall("f", {"s": 3}), "value_error"),
        (ToolCall("f", {"s": "x", "n": "3"}), "value_error"),
        (ToolCall("f", {"s": "x", "n": 3, "b": True}), None),
        (ToolCall("f", {"s": "x", "n": 2.5}), None),
        (ToolCall("f", {"s": "x", "n": True}), None),
        (ToolCall("f", {"s": "x", "b": 1}), "value_error"),
        (ToolCall("f", {"s": "x", "a": "[1]"}), "value_error"),
        (ToolCall("f", {"s": "x", "i": "3", "o": 4}), None),
    ],
)
def test_declarations(call: ToolCall, kind: str | None) -> None:
    problem = format_problem(call, SIGNATURES)
    assert (problem.type if problem else None) == kind
    assert problem is None or call.name in problem.message


def test_equal_calls_are_paired_first_and_others_by_likeness() -> None:
    golden = [ToolCall("a", {"x": 1, "y": 1}), ToolCall("a", {"x": 2, "y": 2}), ToolCall("b", {"x": 2})]
    assert align([golden[2], golden[1], golden[0]], golden) == [(0, 2), (1, 1), (2, 0)]
    assert align([ToolCall("a", {"x": 2, "y": 9}), ToolCall("b", {"x": 9})], golden) == [(0, 1), (1, 2)]
    assert align([ToolCall("c", {"x": 1, "y": 1}), golden[0]], golden) == [(0, 1), (1, 0)]
    assert align(golden, golden[:1]) == [(0, 0)]
    assert align([], golden) == align(golden, []) == []


def test_equal_calls_pair_one_to_one() -> None:
    call = ToolCall("a", {"x": 1})
    assert align([call, call], [call, call]) == [(0, 0), (1, 1)]
    assert align([call, call], [call]) == [(0, 0)]


def test_the_table_is_the_benchmarks_own() -> None:
    published = json.loads(real("cfb/exact_match_values.json").read_text())
    assert {name: sorted(names) for name, names in published.items()} == {
        name: sorted(names) for name, names in EXACT_ARGUMENTS.items()
    }
    assert set(FREE_FUNCTIONS) <= set(published)
