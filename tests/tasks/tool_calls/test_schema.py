"""What a text stands for is decided by the function's JSON schema, in all its ways of saying a type."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.tasks.json_values import same
from vcbench.tasks.tool_calls.base import Signature, ToolCall
from vcbench.tasks.tool_calls.formats import FORMATS, parse
from vcbench.tasks.tool_calls.schema import plain_schema, value_of

DEFS = {
    "Count": {"type": "integer"},
    "Maybe": {"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]},
    "Unit": {"enum": ["km", "mi"]},
    "Place": {"type": "object", "properties": {"name": {"type": "string"}, "at": {"$ref": "#/$defs/Point"}}},
    "Point": {"type": "array", "items": {"type": "number"}},
    "Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}},
    "Loop": {"$ref": "#/$defs/Loop"},
    "a/b~c%d": {"type": "boolean"},
}
INT, STR, NULL, ARRAY, OBJECT, NUMBER, BOOL = (
    {"type": name} for name in ("integer", "string", "null", "array", "object", "number", "boolean")
)
CASES: list[tuple[Any, str, Any]] = [
    ({"anyOf": [INT, NULL]}, "3", 3),
    ({"anyOf": [INT, NULL]}, "null", None),
    ({"anyOf": [INT, NULL]}, "None", None),
    ({"oneOf": [STR, INT]}, "3", 3),
    ({"oneOf": [INT, NUMBER]}, "3", 3),
    ({"anyOf": [STR, ARRAY]}, '["a"]', ["a"]),
    ({"anyOf": [STR, ARRAY]}, "['a']", ["a"]),
    ({"anyOf": [STR, ARRAY]}, "[draft] text", "[draft] text"),
    ({"anyOf": [STR, NULL]}, "null", None),
    ({"anyOf": [STR, NULL]}, "nullable", "nullable"),
    ({"anyOf": [{"type": "string", "maxLength": 3}, INT]}, "1234", 1234),
    ({"anyOf": [{"type": "integer", "minimum": 10}, STR]}, "3", "3"),
    ({"allOf": [INT, {"minimum": 0}]}, "3", 3),
    ({"allOf": [{"$ref": "#/$defs/Count"}], "description": "n"}, "3", 3),
    ({"$ref": "#/$defs/Count"}, "3", 3),
    ({"$ref": "#/$defs/Maybe"}, "null", None),
    ({"$ref": "#/$defs/Maybe"}, "7", 7),
    ({"$ref": "#/$defs/Unit"}, "km", "km"),
    ({"$ref": "#/$defs/Place"}, "{'name': 'x', 'at': (1, 2)}", {"name": "x", "at": [1, 2]}),
    ({"$ref": "#/$defs/Place"}, '{"name": "x", "at": [1.5]}', {"name": "x", "at": [1.5]}),
    ({"$ref": "#/$defs/Tree"}, '{"left": {"left": {}}}', {"left": {"left": {}}}),
    ({"$ref": "#/$defs/a~1b~0c%25d"}, "true", True),
    ({"$ref": "#/$defs/Loop"}, '{"a": 1}', {"a": 1}),
    ({"$ref": "#/$defs/Loop"}, "words", "words"),
    ({"$ref": "#/$defs/Absent"}, '{"a": 1}', {"a": 1}),
    ({"$ref": "http://127.0.0.1:9/never.json"}, "words", "words"),
    ({"enum": [1, 2, 3]}, "2", 2),
    ({"enum": ["1", "2"]}, "2", "2"),
    ({"enum": ["1", 2]}, "2", 2),
    ({"enum": [1, 2]}, "9", 9),
    ({"enum": [True, None]}, "True", True),
    ({"enum": [True, None]}, "None", None),
    ({"enum": ["true", "false"]}, "true", "true"),
    ({"enum": ["km"]}, "  km", "km"),
    ({"enum": ["km"]}, '"km"', "km"),
    ({"enum": [[1], {"a": 1}]}, "{'a': 1}", {"a": 1}),
    ({"const": 5}, "5", 5),
    ({"const": "5"}, "5", "5"),
    ({"const": None}, "null", None),
    ({"type": ["integer", "null"]}, "3", 3),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "integer"]}, "3", 3),
    ({"type": ["string", "integer"]}, "007", "007"),
    ({"type": ["string", "boolean"]}, "true", True),
    ({"type": "integer", "nullable": True}, "null", None),
    ({"type": "string", "nullable": True, "enum": ["a", "b"]}, "null", None),
    ({"type": "string", "nullable": True, "enum": ["a", "b"]}, "a", "a"),
    ({"type": "string", "nullable": False}, "null", "null"),
    (STR, "3", "3"),
    (STR, "true", "true"),
    (STR, '"quoted"', '"quoted"'),
    (STR, '{"a": 1}', '{"a": 1}'),
    (STR, "1234567890123456789012", "1234567890123456789012"),
    ({"type": "string", "pattern": "^x"}, "3", "3"),
    (INT, "007", 7),
    (INT, "+5", 5),
    (INT, "3.0", 3.0),
    (INT, "3.5", "3.5"),
    (INT, "12345678901234567890", 12345678901234567890),
    (NUMBER, ".5", 0.5),
    (NUMBER, "1e400", "1e400"),
    (NUMBER, "3 km", "3 km"),
    (BOOL, "TRUE", True),
    (BOOL, "1", "1"),
    ({"type": "array", "items": INT}, "[1, 2]", [1, 2]),
    ({"type": "array", "items": INT}, '["1"]', ["1"]),
    ({"type": "array", "items": [INT, STR]}, "[1, 'a']", [1, "a"]),
    ({"type": "array", "items": {"type": "array", "items": OBJECT}}, "[[{'a': None}]]", [[{"a": None}]]),
    (ARRAY, "1, 2", [1, 2]),
    (ARRAY, "[1, 2", "[1, 2"),
    (OBJECT, "{'on': True}", {"on": True}),
    (OBJECT, "{'on': true}", {"on": True}),
    (OBJECT, '{"a": {"b": [1, {"c": "}"}]}}', {"a": {"b": [1, {"c": "}"}]}}),
    ({"type": "object", "required": ["z"]}, '{"a": 1}', {"a": 1}),
    ({"type": "object", "properties": {"n": INT}}, '{"n": "3"}', {"n": "3"}),
    ({"properties": {"n": INT}}, '{"n": 3}', {"n": 3}),
    ({"type": "dict", "properties": {"type": {"type": "float"}}}, '{"type": 1}', {"type": 1}),
    ({"type": "STRING"}, "3", "3"),
    ({"type": "INTEGER"}, "3", 3),
    ({"type": "List[int]"}, "[3]", [3]),
    ({"type": "Optional[int]"}, "None", None),
    ({"type": "string[]"}, "['a']", ["a"]),
    ({"type": "any"}, "3", 3),
    ({"type": "any"}, "words", "words"),
    ({"type": "no such type"}, "3", "3"),
    ({"type": 3}, "3", "3"),
    ({"minimum": "x", "type": "integer"}, "3", 3),
    ({"description": "says nothing"}, "3", "3"),
    ({}, "3", "3"),
    (True, "3", "3"),
    (None, "3", "3"),
]


@pytest.mark.parametrize(("schema", "text", "value"), CASES)
def test_values_by_their_schema(schema: Any, text: str, value: Any) -> None:
    parameters = {"type": "object", "$defs": DEFS, "properties": {"x": schema, "$ref": INT}}
    assert same(value_of(text, plain_schema(parameters), "x"), value)

    call = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    found = parse(call, "qwen3-coder", {"f": Signature.load(Signature.of(parameters).as_dict())})
    assert (found.calls, found.errors) == ((ToolCall("f", {"x": value}),), ())


@pytest.mark.parametrize("name", ["a/b", "a~b", "50%", "a#b", "ü", "$ref", "items", "description"])
def test_names_of_parameters_are_no_words_of_the_schema(name: str) -> None:
    assert value_of("3", plain_schema({"properties": {name: {"anyOf": [INT, NULL]}}}), name) == 3


def test_definitions_of_older_drafts() -> None:
    parameters = {"definitions": {"N": INT}, "properties": {"x": {"$ref": "#/definitions/N"}}, "$id": "http://a.test/b"}
    assert value_of("3", plain_schema(parameters), "x") == 3


def test_records_of_before_hold_types_alone() -> None:
    old = Signature.load({"types": {"n": "integer", "o": "dict", "x": ""}, "required": ["n"]})
    assert (old.types, old.required) == ({"n": "integer", "o": "object", "x": ""}, ("n",))


SCHEMAS = st.recursive(
    st.sampled_from(
        [INT, STR, NULL, ARRAY, OBJECT, NUMBER, BOOL, {}, True, False, None, 3, {"enum": []}, {"type": []}]
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"oneOf": inner}),
        st.fixed_dictionaries({"items": st.lists(inner, max_size=2), "type": st.just("array")}),
        st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2)}),
        st.fixed_dictionaries({"patternProperties": st.dictionaries(st.sampled_from(["a", "("]), inner, max_size=1)}),
        st.fixed_dictionaries({"$ref": st.sampled_from(["#", "#/properties/x", "x", "#/nowhere", "#bad"])}),
        st.fixed_dictionaries({"required": st.booleans(), "nullable": st.booleans(), "multipleOf": st.just(0)}),
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.one_of(st.text(max_size=12), st.sampled_from(["3", "null", "[1]", "{'a': 1}", "True", '"x"'])))
def test_no_schema_is_too_strange(schema: Any, text: str) -> None:
    parameters = plain_schema({"properties": {"x": schema}})
    value = value_of(text, parameters, "x")
    assert value is None or isinstance(value, bool | int | float | str | list | dict)


def test_text_that_speaks_of_tags_stays_in_its_parameter() -> None:
    code = 'print("</parameter>")\n# </function> ends <function=f> in a </tool_call>, <tool_call> begins it'
    signatures = {"f": Signature.of({"properties": {"code": STR, "n": INT}})}
    for calls in ([ToolCall("f", {"code": code, "n": 3})], [ToolCall("f", {"n": 3, "code": code})] * 2):
        found = parse(FORMATS["qwen3-coder"].write(calls), "qwen3-coder", signatures)
        assert (list(found.calls), found.errors) == (calls, ())


@pytest.mark.parametrize("name", ["hermes", "llama3-json", "mistral"])
def test_arguments_written_out_in_a_text_are_arguments(name: Any) -> None:
    key = "parameters" if name == "llama3-json" else "arguments"
    inner = '"{\\"a\\": {\\"b\\": \\"}</tool_call>\\"}}"'
    call = f'{{"name": "f", "{key}": {inner}}}'
    text = {"hermes": f"<tool_call>{call}</tool_call>", "mistral": f"[TOOL_CALLS][{call}]"}.get(name, call)

    assert parse(text, name, {}).calls == (ToolCall("f", {"a": {"b": "}</tool_call>"}}),)
