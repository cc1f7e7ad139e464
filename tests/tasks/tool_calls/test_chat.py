"""What a model's template can do is found out by trying; what it cannot do, an instruction does."""

from __future__ import annotations

import json

import pytest

from tests.tasks.tool_calls.templates import (
    BY_FORMAT,
    DROPS_CALLS,
    DROPS_FUNCTIONS,
    DROPS_RESULTS,
    HERMES,
    LLAMA3,
    PLAIN,
    REFUSES_RESULTS,
    UNKNOWN,
    TemplateTokenizer,
)
from tests.tasks.words import WordTokenizer
from vcbench.errors import TaskError
from vcbench.tasks.tool_calls.base import Signature, ToolCall
from vcbench.tasks.tool_calls.chat import Dialect, Exchange, as_messages, dialect_of
from vcbench.tasks.tool_calls.formats import FORMATS, FormatName, parse

FUNCTION = {
    "name": "find_port",
    "description": "Finds a port.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer"}}},
}
SIGNATURES = {"find_port": Signature.of(FUNCTION["parameters"])}  # type: ignore[arg-type]
CALLS = (ToolCall("find_port", {"query": "Ålsund", "count": 2}), ToolCall("find_port", {"query": "Sula"}))
HISTORY = [Exchange(calls=CALLS, results=('{"id": "a1"}', '{"id": "s9"}'))]
ASKED = "Where is the ferry?"


def text_of(tokenizer: WordTokenizer, dialect: Dialect, history: list[Exchange]) -> str:
    return tokenizer.decode(dialect.ids(tokenizer, as_messages(ASKED, history), [FUNCTION]))


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_found_and_its_history_is_read_back(name: FormatName) -> None:
    tokenizer = TemplateTokenizer(BY_FORMAT[name])
    dialect = dialect_of(tokenizer)
    assert dialect == Dialect(format=name, template=True, parallel=name != "llama3-json")
    text = text_of(tokenizer, dialect, HISTORY)
    assert text.endswith("<s>assistant")
    assert text.index("find_port") < text.index(ASKED)
    after = text.partition(ASKED)[2]
    turns = [turn.removeprefix("<s>assistant\n") for turn in after.split("</s>\n") if turn.startswith("<s>assistant")]
    found = [call for turn in turns for call in parse(turn, name, SIGNATURES).calls]
    assert tuple(found) == CALLS
    assert after.index("Sula") < after.index("s9")
    one_by_one = after.index("a1") < after.index("Sula")
    assert one_by_one == (not dialect.parallel)


@pytest.mark.parametrize("source", [PLAIN, DROPS_CALLS, DROPS_RESULTS, DROPS_FUNCTIONS, REFUSES_RESULTS])
def test_a_template_that_drops_anything_gets_the_instruction(source: str) -> None:
    tokenizer = TemplateTokenizer(source)
    assert dialect_of(tokenizer) == Dialect(format="hermes", template=False)
    assert dialect_of(tokenizer, "mistral") == Dialect(format="mistral", template=False)


@pytest.mark.parametrize("name", FORMATS)
def test_the_instruction_shows_everything(name: FormatName) -> None:
    tokenizer = TemplateTokenizer(PLAIN)
    dialect = dialect_of(tokenizer, name)
    text = text_of(tokenizer, dialect, HISTORY)
    asked, answered, told, rest = text.split("</s>\n")
    assert json.dumps(FUNCTION) in asked
    assert asked.endswith(ASKED)
    example = ToolCall("function_name", {"parameter": "value"})
    assert parse(asked, name, {}).calls[-1:] == (example,)
    assert parse(answered.removeprefix("<s>assistant\n"), name, SIGNATURES).calls == CALLS
    assert told.startswith('<s>user\n<tool_response>\n{"id": "a1"}\n</tool_response>\n<tool_response>')
    assert rest == "<s>assistant"


def test_a_format_that_nobody_knows_is_an_error_that_lists_the_choices() -> None:
    with pytest.raises(TaskError, match="one that the model answers in: hermes, llama3-json, mistral, qwen3-coder"):
        dialect_of(TemplateTokenizer(UNKNOWN))
    assert dialect_of(TemplateTokenizer(UNKNOWN), "llama3-json").template


def test_the_option_overrides_what_the_template_writes() -> None:
    assert dialect_of(TemplateTokenizer(HERMES), "mistral") == Dialect(format="mistral", template=True)
    assert dialect_of(TemplateTokenizer(LLAMA3), "hermes") == Dialect(format="hermes", template=True, parallel=False)


def test_tokenizers_without_a_template_to_look_at() -> None:
    assert dialect_of(WordTokenizer()).template is False
    assert dialect_of(TemplateTokenizer(None)).template is False


def test_ids_of_calls_are_unique_and_have_nine_characters() -> None:
    made = as_messages(ASKED, HISTORY * 2)
    calls = [call["id"] for message in made for call in message.get("tool_calls", ())]
    assert len(set(calls)) == 4
    assert {len(key) for key in calls} == {9}
    assert [message["tool_call_id"] for message in made if message["role"] == "tool"] == calls


def test_text_beside_the_calls_stays() -> None:
    for source in (HERMES, PLAIN):
        tokenizer = TemplateTokenizer(source)
        history = [Exchange(calls=CALLS[:1], results=("1",), text="Let me look.")]
        assert "Let me look." in text_of(tokenizer, dialect_of(tokenizer), history)


def test_what_a_record_says() -> None:
    assert dialect_of(TemplateTokenizer(LLAMA3)).as_meta() == {
        "format": "llama3-json",
        "tools_by": "chat template",
        "parallel_calls": False,
    }
