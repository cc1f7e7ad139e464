"""Rows as conversations: each fault named with line and field, and what cannot be asked told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real_data import real
from tests.tasks.cfb.examples import sample
from vcbench.errors import TaskError
from vcbench.tasks.cfb.conversations import Conversation, read_conversation
from vcbench.tasks.cfb.exact_arguments import EXACT_ARGUMENTS, FREE_FUNCTIONS
from vcbench.tasks.rows import identified, read_rows
from vcbench.tasks.tool_calls.base import ToolCall

USER = {"role": "user", "content": "Find it."}
CALL = {"role": "assistant", "function_call": [{"name": "find", "arguments": {"id": "a"}}]}
RESULT = {"role": "observation", "content": [{"found": "ü"}]}
END = {"role": "assistant", "content": "Here it is."}
FUNCTION = {"name": "find", "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": []}}
GOOD: dict[str, Any] = {"id": "Car-Rental-7", "conversations": [USER, CALL, RESULT, END], "functions": [FUNCTION]}


def read(path: Path, **changes: Any) -> Conversation:
    row = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    path.write_text("\n" + json.dumps(row))
    ((name, row_read),) = identified(read_rows(path), "id")
    return read_conversation(name, row_read, None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_a_row(path: Path) -> None:
    found = read(path)
    assert (found.id, found.domain, found.request) == ("Car-Rental-7", "Car-Rental", "Find it.")
    (step,) = found.steps
    assert step.calls == (ToolCall("find", {"id": "a"}),)
    assert step.results == ('{"found": "ü"}',)
    assert found.exact_arguments is EXACT_ARGUMENTS
    assert found.free_functions == FREE_FUNCTIONS
    assert not found.synthetic
    assert found.obstacle(whole=True) == ""


def turns(*given: Any) -> dict[str, Any]:
    return {"conversations": [USER, *given]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"conversations": ...}, "field `conversations` is missing"),
        ({"conversations": "x"}, "field `conversations` must be a list"),
        ({"conversations": []}, "field `conversations[0]` must be the user's turn"),
        ({"conversations": [CALL]}, "field `conversations[0]` must be the user's turn"),
        ({"conversations": [{"role": "user", "content": ["x"]}]}, "field `conversations[0].content` must be a text"),
        (turns("x"), "field `conversations[1]` must be an assistant's turn"),
        (turns(USER), "its role is 'user'"),
        (turns({"role": "assistant", "content": ["x"]}), "field `conversations[1]`"),
        (turns(CALL, CALL), "field `conversations[2]`: the calls before it have no observations"),
        (turns(CALL, {"role": "observation", "content": "x"}), "one entry for each of the 1 calls before it, not str"),
        (turns(CALL, {"role": "observation", "content": [1, 2]}), "field `conversations[2].content`"),
        (turns(RESULT), "field `conversations[1]`: there are no calls before this observation"),
        (turns({"role": "observation", "content": []}), "there are no calls before this observation"),
        (turns({"role": "assistant", "function_call": {}}), "field `conversations[1].function_call` must be a list"),
        (turns({"role": "assistant", "function_call": [{"arguments": {}}]}), "function_call[0]` must be an object"),
        (
            turns({"role": "assistant", "function_call": [{"name": "find", "arguments": "{}"}]}),
            "function_call[0].arguments` must be an object",
        ),
        ({"functions": ...}, "field `functions` is missing"),
        ({"functions": [{"description": "x"}]}, "field `functions[0]` must be an object with a `name`"),
        ({"functions": [{"name": "find", "parameters": []}]}, None),
        ({"functions": [{"name": "find", "parameters": [1]}]}, "field `functions[0].parameters` must be a JSON schema"),
        ({"functions": [{"name": "f", "parameters": {"required": "id"}}]}, "parameters.required` must be a list"),
        ({"functions": [{"name": "f", "parameters": {"required": [1]}}]}, "required` must be a list of names"),
        ({"exact_arguments": {"find": "id"}}, "field `exact_arguments` must hold a list"),
        ({"exact_arguments": {"find": [1]}}, "field `exact_arguments` must hold a list"),
        ({"free_functions": [1]}, "field `free_functions` must be a list of names"),
        ({"id": 3.5}, "field `id` must be a text or a whole number"),
    ],
)
def test_faults_name_line_and_field(path: Path, changes: dict[str, Any], says: str | None) -> None:
    if says is None:
        read(path, **changes)
        return
    with pytest.raises(TaskError) as caught:
        read(path, **changes)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert says in str(caught.value)


def test_what_cannot_be_asked(path: Path) -> None:
    assert read(path, **turns(END)).obstacle(whole=False) == "it has no function call"
    other = {"role": "assistant", "function_call": [{"name": "fly", "arguments": {}}]}
    assert (
        read(path, **turns(other, RESULT)).obstacle(whole=False) == "it calls 'fly', which is not among its functions"
    )
    open_end = read(path, **turns(CALL))
    assert open_end.obstacle(whole=False) == ""
    assert open_end.obstacle(whole=True) == "its last calls have no observations"


def test_a_row_may_bring_its_own_rules(path: Path) -> None:
    found = read(path, exact_arguments={"find": ["id"]}, free_functions=["find"], synthetic=True)
    assert (found.exact_arguments, found.free_functions, found.synthetic) == ({"find": ["id"]}, ("find",), True)


def test_the_sample_is_labelled_varied_and_consistent() -> None:
    found = sample()
    assert len(found) >= 6
    assert len({each.domain for each in found}) >= 5
    assert all(each.synthetic and each.obstacle(whole=True) == "" for each in found)
    steps = [step for each in found for step in each.steps]
    assert max(len(step.calls) for step in steps) >= 3
    assert all(len(each.steps) >= 2 for each in found)
    for each in found:
        called = {call.name for step in each.steps for call in step.calls}
        assert called <= set(each.exact_arguments)
        assert called & set(each.free_functions) or each.domain == "Nursery"
        later = json.dumps([call.as_dict() for step in each.steps[1:] for call in step.calls], ensure_ascii=False)
        seen = [value for call in each.steps[-1].calls for value in call.arguments.values() if isinstance(value, str)]
        # Ids that later calls need are in observations, and nowhere in the request.
        ids = [value for value in seen if "_" in value]
        assert ids
        assert all(value not in each.request for value in ids)
        assert any(value in result for value in ids for step in each.steps[:-1] for result in step.results), later


def test_the_papers_example_is_read(path: Path) -> None:
    """Its functions are not given there, so they are declared here by what it calls."""
    row = json.loads(real("cfb/paper_table5_example.json").read_text("utf-8"))
    called = [call for turn in row["conversations"] for call in turn.get("function_call", ())]
    functions = [
        {
            "name": name,
            "parameters": {"properties": {key: {} for c in called if c["name"] == name for key in c["arguments"]}},
        }
        for name in dict.fromkeys(call["name"] for call in called)
    ]
    found = read(path, **row, functions=functions)
    assert [len(step.calls) for step in found.steps] == [3, 2]
    assert found.steps[0].results[0].startswith('{"message": "Success"')
    assert found.obstacle(whole=False) == ""
    assert found.obstacle(whole=True) == "its last calls have no observations"
