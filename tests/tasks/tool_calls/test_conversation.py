"""Recorded conversations for templates with functions and without: nothing of them is lost."""

from __future__ import annotations

import pytest

from vcbench.tasks.tool_calls.conversation import instructed, renumbered
from vcbench.tasks.tool_calls.formats import FORMATS, FormatName, parse

FUNCTION = {"name": "find", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}


def call(key: str, x: int) -> dict[str, object]:
    return {"id": key, "type": "function", "function": {"name": "find", "arguments": {"x": x}}}


MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Find one and two."},
    {"role": "assistant", "content": "At once.", "tool_calls": [call("call_abc", 1), call("call_def", 2)]},
    {"role": "tool", "tool_call_id": "call_abc", "content": "first"},
    {"role": "tool", "tool_call_id": "call_def", "content": [{"type": "text", "text": "second"}]},
    {"role": "user", "content": "And three?"},
    {"role": "assistant", "content": None, "tool_calls": [call("call_abc", 3)]},
    {"role": "tool", "tool_call_id": "call_abc", "content": "third"},
]


def test_ids_that_every_template_takes() -> None:
    made = renumbered(MESSAGES)
    assert [message.get("tool_call_id") for message in made if message["role"] == "tool"] == [
        "call00000",
        "call00001",
        "call00000",
    ]
    assert [entry["id"] for message in made for entry in message.get("tool_calls", [])] == [
        "call00000",
        "call00001",
        "call00000",
    ]
    assert made[6]["content"] == ""
    assert made[0] == MESSAGES[0]
    assert MESSAGES[3]["tool_call_id"] == "call_abc", "the given messages stay as they are"


def test_one_call_at_a_time() -> None:
    made = renumbered(MESSAGES, parallel=False)
    assert [message["role"] for message in made] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "user",
        "assistant",
        "tool",
    ]
    assert [message["content"] for message in made if message["role"] == "assistant"] == ["At once.", "", ""]
    for place in (2, 4, 7):
        (one,) = made[place]["tool_calls"]
        assert made[place + 1]["tool_call_id"] == one["id"]
    unanswered = renumbered(MESSAGES[:3], parallel=False)
    assert [message["role"] for message in unanswered] == ["system", "user", "assistant", "assistant"]


@pytest.mark.parametrize("name", list(FORMATS))
def test_without_functions_in_the_template(name: FormatName) -> None:
    made = instructed(MESSAGES, [FUNCTION], name)
    assert [message["role"] for message in made] == ["system", "user", "assistant", "user", "user", "assistant", "user"]
    assert made[0]["content"] == "Be short."
    assert '{"name": "find", "parameters"' in made[1]["content"]
    assert made[1]["content"].endswith("Find one and two.")
    assert made[2]["content"].startswith("At once.")
    assert [dict(found.arguments) for found in parse(made[2]["content"], name, {}).calls] in (
        [{"x": 1}, {"x": 2}],
        [{"x": "1"}, {"x": "2"}],
    )
    results = "<tool_response>\nfirst\n</tool_response>\n<tool_response>\nsecond\n</tool_response>"
    assert made[3]["content"] == results
    assert made[4]["content"] == "And three?"
    assert set(made[6]) == {"role", "content"}


def test_results_without_functions() -> None:
    made = instructed(MESSAGES, [], "hermes")
    assert made[1]["content"] == "Find one and two."
