"""Every format reads back what it writes, keeps the text around calls, and counts what should be a call and is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.real_data import real
from vcbench.tasks.tool_calls.base import Parsed, Signature, ToolCall
from vcbench.tasks.tool_calls.formats import FORMATS, FormatName, parse
from vcbench.tasks.tool_calls.schema import plain_schema, value_of

TYPES = {
    "place": "string",
    "count": "integer",
    "ratio": "number",
    "deep": "object",
    "list": "array",
    "flag": "boolean",
    "plain": "",
}
SIGNATURES = {
    "find": Signature.load({"types": TYPES, "required": ()}),
    "Get_Reviews(Tips)": Signature.load({"types": TYPES, "required": ()}),
    "no_arguments": Signature.load({"types": {}, "required": ()}),
}
CALLS = (
    ToolCall("find", {"place": 'Ålsund "Nord"\n</tool_call> \\ {', "count": -3, "ratio": 2.5, "flag": False}),
    ToolCall("Get_Reviews(Tips)", {"deep": {"a": [1, {"b": None}], "ü": "x; y"}, "list": ["a", 1.5, True]}),
    ToolCall("no_arguments", {}),
)


def newer_mistral(calls: Sequence[ToolCall]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{json.dumps(dict(call.arguments))}" for call in calls)


def read(text: str, name: FormatName) -> Parsed:
    return parse(text, name, SIGNATURES)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_written_is_read_back(name: FormatName, count: int) -> None:
    found = read(FORMATS[name].write(CALLS[:count]), name)
    assert found == Parsed(CALLS[:count], "")


@pytest.mark.parametrize("name", FORMATS)
def test_text_around_calls_and_reasoning_before_them(name: FormatName) -> None:
    calls = FORMATS[name].write(CALLS[:1])
    found = read(f"<think>I might call {calls}</think>Let me look.\n{calls}", name)
    assert found == Parsed(CALLS[:1], "Let me look.")
    assert read(f"<think>cut off {calls}", name) == Parsed((), "")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", ["", "The ferry leaves at 6:40.", "a < b, {x}, [1], f(y)", '{"answer": 3} in the end'])
def test_plain_text_is_no_call(name: FormatName, text: str) -> None:
    found = read(f"It is so: {text}", name)
    assert (found.calls, found.errors) == ((), ())
    assert found.text == f"It is so: {text}".strip()


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_is_cut_off_is_an_error_wherever_it_is_cut(name: FormatName) -> None:
    """No prefix gives a call with other arguments; a call that is not whole counts as an error once it has begun."""
    text = FORMATS[name].write(CALLS[:1])
    whole = [length for length in range(len(text) + 1) if read(text[:length], name).calls]
    assert all(read(text[:length], name).calls == CALLS[:1] for length in whole)
    assert text[min(whole) :].strip() in ("", "</tool_call>"), "only the last closing tag may be missing"
    begun = len(text) // 2
    for length in range(begun, min(whole)):
        found = read(text[:length], name)
        assert len(found.errors) == 1, text[:length]


@pytest.mark.parametrize("name", FORMATS)
def test_a_broken_call_does_not_take_a_sound_one_with_it(name: FormatName) -> None:
    broken = {
        "hermes": '<tool_call>\n{"name": "find", "arguments": {"place": }}\n</tool_call>\n',
        "qwen3-coder": "<tool_call>\n<function=find>\n<parameter=place>\nx\n</tool_call>\n",
        "llama3-json": '{"name": "find", "parameters": {"place": }}; ',
        "mistral": '[TOOL_CALLS][{"name": "find", "arguments": {"place": }}]',
    }[name]
    found = read(broken + FORMATS[name].write(CALLS[1:2]), name)
    assert found.calls == CALLS[1:2]
    assert len(found.errors) == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("hermes", '<tool_call>{"name": "find", "arguments": {"a": 1, "a": 2}}</tool_call>', "key 'a' is given twice"),
        ("hermes", '<tool_call>{"name": "find"}</tool_call>', "a call needs `arguments`"),
        ("hermes", '<tool_call>{"name": "find", "arguments": "x"}</tool_call>', "`arguments` must be an object"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "a call needs a `name`"),
        ("hermes", '<tool_call>[{"name": "find", "arguments": {}}]</tool_call>', "must be a JSON object, not list"),
        ("hermes", '<tool_call>{"name": "find", "arguments": {}}}</tool_call>', "something follows"),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"a": NaN}}</tool_call>', "bare NaN"),
        ("hermes", "<tool_call>" + '{"a":' * 100_000, "not JSON"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", "not JSON"),
        ("hermes", "<tool_call><function=find></function></tool_call>", "not JSON"),
        ("qwen3-coder", '<tool_call>{"name": "find", "arguments": {}}</tool_call>', "a call needs <function=NAME>"),
        (
            "qwen3-coder",
            "<function=find><parameter=a>1</parameter><parameter=a>2</parameter></function>",
            "'a' is given twice",
        ),
        ("qwen3-coder", "<function=find><parameter=a>1</parameter>", "the call of 'find' has no end"),
        ("llama3-json", '{"name": "find", "parameters": {"a": 1, "a": 2}}', "key 'a' is given twice"),
        ("llama3-json", '{"name": "find", "parameters": {}, "arguments": {}}', "`parameters` or `arguments`, once"),
        ("llama3-json", '{"name": "find"}', "a call needs `parameters` or `arguments`"),
        ("llama3-json", "<|python_tag|>find.call(place=3)", "followed by something other than JSON"),
        ("mistral", "[TOOL_CALLS] find the ferry", "followed neither by an array nor by a name"),
        ("mistral", "[TOOL_CALLS][]", "the array holds no call"),
        ("mistral", "[TOOL_CALLS]find[ARGS]{", "not JSON"),
        ("mistral", "[TOOL_CALLS]find[ARGS][1]", "followed neither by an array nor by a name"),
    ],
)
def test_faults(name: FormatName, text: str, says: str) -> None:
    found = read(text, name)
    assert found.calls == ()
    assert len(found.errors) == 1
    assert says in found.errors[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"arguments": {"place": "x"}, "name": "find"}'),
        ("hermes", ' <tool_call>  {"name": "find", "arguments": {"place": "x"}, "id": 3} </tool_call> '),
        ("hermes", '<tool_call>\n{"name": "find", "arguments": {"place": "\\u0078"}}\n</tool_call>'),
        ("qwen3-coder", "<function=find><parameter=place>x</parameter></function>"),
        ("qwen3-coder", "<tool_call>\n<function=find>\n<parameter=place>\nx\n</function>\n</tool_call>"),
        ("llama3-json", '<|python_tag|>{"name": "find", "parameters": {"place": "x"}}'),
        ("llama3-json", '{"type": "function", "name": "find", "arguments": {"place": "x"}}'),
        ("mistral", '[TOOL_CALLS]find{"place": "x"}'),
        ("mistral", '[TOOL_CALLS]find[CALL_ID]a1b2c3d4e[ARGS]{"place": "x"}'),
        ("mistral", '[TOOL_CALLS] [{"name": "find", "arguments": {"place": "x"}, "id": "call00000"}]'),
    ],
)
def test_forms_that_models_use(name: FormatName, text: str) -> None:
    assert read(text, name) == Parsed((ToolCall("find", {"place": "x"}),), "")


def test_the_newer_mistral_form_with_several_calls() -> None:
    found = read("First this." + newer_mistral(CALLS), "mistral")
    assert found == Parsed(CALLS, "First this.")


def test_objects_inside_a_call_are_not_calls() -> None:
    inner = {"name": "no_arguments", "parameters": {}}
    text = json.dumps({"name": "find", "parameters": {"deep": inner}})
    assert read(text, "llama3-json").calls == (ToolCall("find", {"deep": inner}),)
    assert read(text[:-1] + "]", "llama3-json").calls == ()


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", "integer", 3),
        ("3", "number", 3),
        ("3.50", "number", 3.5),
        ("1e3", "number", 1000.0),
        ("3", "string", "3"),
        ("3", "", "3"),
        ("true", "string", "true"),
        ("True", "boolean", True),
        ("FALSE", "boolean", False),
        ("yes", "boolean", "yes"),
        ("true", "integer", "true"),
        ("about 3", "number", "about 3"),
        ("3 4", "number", "3 4"),
        ("NaN", "number", "NaN"),
        ("null", "object", None),
        ("None", "integer", None),
        ("null", "string", "null"),
        (' {"a": [1]} ', "object", {"a": [1]}),
        ("[1, 2", "array", "[1, 2"),
        ("3", "array", "3"),
        ("[1]", "list", [1]),
        ("2.5", "float", 2.5),
        ("\n two lines \n", "string", "\n two lines \n"),
    ],
)
def test_values_written_as_text_get_their_types(text: str, kind: str, value: Any) -> None:
    parameters = {"properties": {"x": {"type": kind} if kind else {}}}
    found = value_of(text, plain_schema(parameters), "x")
    assert (found, type(found)) == (value, type(value))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text("abcXYZ_09().-", min_size=1, max_size=12)
CALL = st.builds(ToolCall, NAMES, st.dictionaries(st.text("abc_", min_size=1, max_size=4), VALUES, max_size=4))


@given(st.lists(CALL, min_size=1, max_size=4))
def test_any_json_arguments_survive(calls: list[ToolCall]) -> None:
    for name in ("hermes", "mistral", "llama3-json"):
        assert parse(FORMATS[name].write(calls), name, {}) == Parsed(tuple(calls), "")
    assert parse(newer_mistral(calls), "mistral", {}) == Parsed(tuple(calls), "")


@given(st.text(), st.sampled_from(list(FORMATS)), st.lists(st.text(max_size=30), max_size=4))
def test_no_text_is_too_strange(text: str, name: FormatName, parts: list[str]) -> None:
    pieces = ["<tool_call>", "</tool_call>", "<function=f>", "[TOOL_CALLS]", "[ARGS]", '{"name": "f", "parameters": {']
    for mixed in (text, text.join(pieces), "".join(a + b for a, b in zip(pieces, parts, strict=False))):
        found = read(mixed, name)
        assert all(isinstance(call.arguments, dict) for call in found.calls)


def bfcl_calls() -> list[tuple[dict[str, Signature], list[ToolCall]]]:
    """The declared functions and one right answer of each row; of several right values the first."""
    rows = []
    for name in ("live_multiple", "parallel_multiple"):
        for line in real(f"bfcl/BFCL_v4_{name}_5.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            signatures = {each["name"]: Signature.of(each["parameters"]) for each in row["function"]}
            rows.append((signatures, [first_answer(call) for call in row["ground_truth"]]))
    return rows


def first_answer(call: dict[str, dict[str, list[Any]]]) -> ToolCall:
    ((name, arguments),) = call.items()
    return ToolCall(name, {key: plain(values[0]) for key, values in arguments.items() if values[0] != ""})


def plain(value: Any) -> Any:
    """Nested objects list their right values too."""
    return {key: plain(inner[0]) for key, inner in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", FORMATS)
def test_real_calls_of_bfcl(name: FormatName) -> None:
    rows = bfcl_calls()
    assert len(rows) == 10
    for signatures, calls in rows:
        assert all(set(call.arguments) <= set(signatures[call.name].types) for call in calls)
        assert parse(FORMATS[name].write(calls), name, signatures) == Parsed(tuple(calls), "")
