"""The interactive loop: early and late calls, optional look-ups, what comes back for wrong calls, and when it ends."""

from __future__ import annotations

import json

import pytest

from vcbench.tasks.cfb.conversations import Step
from vcbench.tasks.cfb.loop import PROBLEM, Loop
from vcbench.tasks.tool_calls.base import Parsed, Signature, ToolCall

LOOK = ToolCall("look_up", {"query": "Sula"})
FIRST = ToolCall("find", {"id": "a", "page": 1})
SECOND = ToolCall("find", {"id": "b"})
THIRD = ToolCall("book", {"id": "c"})
TEXT = Parsed((), "It is done.")
SIGNATURES = {
    "look_up": Signature.load({"types": {"query": "string"}, "required": ("query",)}),
    "find": Signature.load({"types": {"id": "string", "page": "number"}, "required": ("id",)}),
    "book": Signature.load({"types": {"id": "string"}, "required": ("id",)}),
}


def loop(*steps: list[ToolCall], max_turns: int = 20) -> Loop:
    made = [Step(tuple(calls), tuple(f"result of {call.arguments}" for call in calls)) for calls in steps]
    return Loop(
        steps=made,
        signatures=SIGNATURES,
        exact_arguments={"find": ["id"], "book": ["id"]},
        free_functions=["look_up"],
        max_turns=max_turns,
    )


def calls(*made: ToolCall) -> Parsed:
    return Parsed(made, "")


def test_golden_calls_step_by_step() -> None:
    talk = loop([LOOK], [FIRST, SECOND], [THIRD])
    for made in ([LOOK], [SECOND, FIRST], [THIRD]):
        turn = talk.take(calls(*made))
        assert (turn.matched, turn.errors, turn.ended) == (len(made), (), False)
        assert turn.results == tuple(f"result of {call.arguments}" for call in made)
    turn = talk.take(TEXT)
    assert (turn.success, turn.lenient, turn.errors) == (True, True, ())


def test_an_optional_look_up_may_be_left_out_or_made_at_any_time() -> None:
    without = loop([LOOK], [FIRST])
    assert without.take(calls(FIRST)).matched == 1
    assert without.take(TEXT).success
    late = loop([LOOK], [FIRST], [SECOND])
    assert late.take(calls(FIRST)).matched == 1
    assert late.take(calls(LOOK, SECOND)).matched == 2
    assert late.take(TEXT).success
    early = loop([FIRST], [LOOK], [SECOND])
    assert early.take(calls(LOOK, FIRST)).matched == 2
    turn = early.take(calls(LOOK))
    assert (turn.matched, turn.results, turn.ended) == (0, ("result of {'query': 'Sula'}",), False)
    assert early.take(calls(SECOND)).matched == 1
    assert early.take(TEXT).success


def test_another_look_up_than_the_golden_one_is_compared_like_any_call() -> None:
    turn = loop([LOOK], [FIRST]).take(calls(ToolCall("look_up", {"query": "Kelbray"})))
    assert turn.results == ("result of {'query': 'Sula'}",)
    assert (turn.matched, turn.undecided) == (0, 1)


def test_calls_may_come_late_and_not_before_their_step_is_open() -> None:
    talk = loop([FIRST, SECOND], [THIRD])
    assert talk.take(calls(FIRST)).matched == 1
    assert talk.take(calls(THIRD)).matched == 1
    assert talk.take(calls(SECOND)).matched == 1
    assert talk.take(TEXT).success
    talk = loop([FIRST], [THIRD])
    turn = talk.take(calls(FIRST, THIRD))
    assert (turn.matched, turn.errors, turn.results[1]) == (1, ("hallucination",), PROBLEM)
    assert talk.take(calls(THIRD)).matched == 1
    assert talk.take(TEXT).success


def test_what_comes_back_for_each_call() -> None:
    talk = loop([FIRST, SECOND], [THIRD])
    turn = talk.take(calls(FIRST, ToolCall("find", {"id": "z"}), ToolCall("find", {}), ToolCall("fly", {})))
    right, wrong, malformed, unknown = turn.results
    assert right == "result of {'id': 'a', 'page': 1}"
    assert wrong == PROBLEM
    assert json.loads(malformed) == {"error": "find needs the parameters id too."}
    assert json.loads(unknown) == {"error": "There is no function named fly."}
    assert sorted(turn.errors) == ["func_error", "param_missing", "value_error"]
    assert turn.matched == 1


def test_undecided_calls_go_on_and_count_apart() -> None:
    talk = loop([FIRST], [THIRD])
    turn = talk.take(calls(ToolCall("find", {"id": "a", "page": 2})))
    assert (turn.matched, turn.undecided, turn.errors) == (0, 1, ())
    assert turn.results == ("result of {'id': 'a', 'page': 1}",)
    talk.take(calls(THIRD))
    turn = talk.take(TEXT)
    assert (turn.success, turn.lenient) == (False, True)


def test_nothing_right_ends_it_and_something_malformed_does_not() -> None:
    turn = loop([FIRST]).take(calls(ToolCall("find", {"id": "z"}), SECOND))
    assert (turn.success, turn.lenient, turn.results) == (False, False, ())
    assert set(turn.errors) == {"value_error", "hallucination"}
    talk = loop([FIRST])
    turn = talk.take(calls(ToolCall("find", {"page": "x"})))
    assert not turn.ended
    assert talk.take(calls(FIRST)).matched == 1
    assert talk.take(TEXT).success


@pytest.mark.parametrize(
    ("before", "last", "error"),
    [
        ([], TEXT, "stop_early"),
        ([calls(FIRST)], TEXT, "stop_early"),
        ([calls(FIRST), calls(THIRD)], calls(THIRD), "hallucination"),
        ([calls(FIRST)], Parsed((THIRD,), "", ("not JSON",)), "decode_error"),
    ],
)
def test_how_it_fails(before: list[Parsed], last: Parsed, error: str) -> None:
    talk = loop([FIRST], [THIRD])
    for parsed in before:
        assert not talk.take(parsed).ended
    turn = talk.take(last)
    assert (turn.success, turn.lenient) == (False, False)
    assert set(turn.errors) == {error}


def test_turns_are_limited() -> None:
    talk = loop([FIRST], [SECOND], max_turns=2)
    assert not talk.take(calls(FIRST)).ended
    turn = talk.take(calls(SECOND))
    assert (turn.matched, turn.success, turn.errors, turn.results) == (1, False, ("turn_limit",), ())


def test_a_search_for_one_hotel_opens_the_next_step_and_may_be_left_out() -> None:
    hotel = ToolCall("Search_Hotels", {"search_type": "hotel", "dest_id": "7"})
    talk = loop([hotel], [FIRST])
    assert talk.take(calls(FIRST)).matched == 1
    assert talk.take(TEXT).success
