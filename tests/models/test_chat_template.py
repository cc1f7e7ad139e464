from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from vcbench.errors import ModelError, TaskError
from vcbench.models.chat_template import DEFAULT_DATE, ChatTemplate, load_template_sources
from vcbench.models.template_process import TemplateProcess

USER = [{"role": "user", "content": "hello"}]


def render(source: str, messages: Any = USER, **keys: Any) -> str:
    return ChatTemplate({"default": source}).render(messages, **keys)


def test_blocks_are_trimmed_as_transformers_does() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"

    assert render(source) == "hello\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 1} | tojson(indent=2) }}", '{\n  "b": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 2025"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{{ bos_token }}{{ eos_token is defined }}", "<s>False"),
        ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "True True True"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
)
def test_what_a_template_may_use(source: str, text: str) -> None:
    assert render(source, variables={"bos_token": "<s>"}) == text


def test_date_can_be_given() -> None:
    template = ChatTemplate({"default": "{{ strftime_now('%Y') }}"}, now=datetime(1999, 1, 1))

    assert template.render(USER) == "1999"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content.upper() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ 1 / 'a' }}",
    ],
)
def test_refusals_of_a_template_are_task_errors(source: str) -> None:
    with pytest.raises(TaskError, match="the model's chat template refuses these messages"):
        render(source)


def test_message_of_the_refusal_is_kept() -> None:
    with pytest.raises(TaskError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_template_that_does_not_compile() -> None:
    with pytest.raises(ModelError, match=r"chat template 'default' does not compile: .* \(line 2\)"):
        ChatTemplate({"default": "\n{% if %}"})


def test_no_template() -> None:
    with pytest.raises(ModelError, match="no chat template"):
        ChatTemplate({})


def test_named_templates() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools[0].name }}"})

    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"name": "ls"}]) == "ls"
    assert ChatTemplate({"rag": "only"}).render(USER) == "only"
    with pytest.raises(ModelError, match="none of the chat templates is the default; there are: a, b"):
        ChatTemplate({"a": "", "b": ""}).render(USER)


PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].content }}", "a\nb"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}", "a;b;"),
        ("{% if messages[0].content is string %}{{ 'text: ' + messages[0].content }}{% endif %}", "text: a\nb"),
        ("{% for p in messages[0].content | selectattr('type') %}{{ p.text }}{% endfor %}", "ab"),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p['type'] }}{% endfor %}{% endfor %}", "texttext"),
        (
            "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}"
            "{% for part in content %}{{ loop.index }}{% endfor %}{% endif %}{% endmacro %}"
            "{{ show(messages[0].content) }}",
            "12",
        ),
    ],
)
def test_content_in_parts_is_passed_or_joined_as_the_template_wants(source: str, text: str) -> None:
    assert render(source, PARTS) == text


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"content": "x"}, "message 0 has no role"),
        ("hello", "message 0 has no role"),
        ({"role": "user", "content": 3}, "message 0 has content of type int"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
            "a part of type 'image_url'; only text",
        ),
        ({"role": "user", "content": [3]}, "a part of type 'int'"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}, "arguments that are not JSON"),
    ],
)
def test_malformed_messages(message: Any, error: str) -> None:
    with pytest.raises(TaskError, match=error):
        render("{{ messages[0].content }}", [message])


def test_tool_call_arguments_are_parsed_and_nulls_dropped() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"path": "x"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    source = (
        "{{ messages[0].content is defined }} "
        "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{{ k }}={{ v }}{% endfor %}"
    )

    assert render(source, [message]) == "False path=x"
    assert call["function"] == {"name": "f", "arguments": '{"path": "x"}'}


def test_hash_follows_the_text() -> None:
    one, same, other = (ChatTemplate({"default": text}).sha256 for text in ("a", "a", "b"))

    assert one == same != other
    assert ChatTemplate({"default": "a", "tool_use": "b"}).sha256 not in (one, other)


def test_sources_in_the_order_of_transformers(tmp_path: Path) -> None:
    config: dict[str, Any] = {"chat_template": "from the configuration"}
    assert load_template_sources(tmp_path, {}) == {}
    assert load_template_sources(tmp_path, config) == {"default": "from the configuration"}
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert load_template_sources(tmp_path, config) == {"default": "from json"}
    (tmp_path / "chat_template.jinja").write_text("from jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert load_template_sources(tmp_path, config) == {"default": "from jinja", "tool_use": "with tools"}


@pytest.mark.parametrize(
    "value",
    [{"default": "a", "rag": "b"}, [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]],
)
def test_named_sources_in_the_configuration(tmp_path: Path, value: Any) -> None:
    assert load_template_sources(tmp_path, {"chat_template": value}) == {"default": "a", "rag": "b"}


@pytest.mark.parametrize("value", [3, [3], {"default": 3}, [{"name": "default"}]])
def test_malformed_sources(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ModelError, match="chat_template is neither"):
        load_template_sources(tmp_path, {"chat_template": value})


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_damaged_template_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "chat_template.json").write_text(content)

    with pytest.raises(ModelError, match=r"chat_template.json (is not JSON|holds list)"):
        load_template_sources(tmp_path, {})


GROWING = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
RECURSIVE = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ range(10**9) }}", "Range too big"),
        (RECURSIVE, "too deeply"),
        (GROWING, "GiB of memory"),
        ("{{ 'x'.center(10**11) }}", "GiB of memory|cannot fit"),
        ("{{ 'x' | indent(10**11) }}", "GiB of memory"),
        ("{{ '%1000000000000d' % 1 }}", "GiB of memory|too (big|large)"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 10.0 ** 1000 }}", "out of range"),
        ("{{ raise_exception('a\nb') }}", "refuses these messages: a b$"),
    ],
)
def test_what_a_hostile_template_does_is_one_line_of_refusal(source: str, message: str) -> None:
    template = ChatTemplate({"default": "{{ messages[0].content }}{% if false %}" + "{% endif %}"})

    with pytest.raises((TaskError, ModelError), match=message) as caught:
        render(source)

    assert "\n" not in str(caught.value)
    assert template.render(USER) == "hello"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_ended(source: str) -> None:
    process = TemplateProcess(cpu_s=0.5)

    answer = process.ask(source, DEFAULT_DATE.isoformat(), {"messages": USER})

    assert "it does not end; a template may take 0.5 s" in answer["error"]
    assert process.ask("{{ 1 }}", DEFAULT_DATE.isoformat(), {})["text"] == "1"
    process.close()


def test_a_template_that_was_ended_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    process = TemplateProcess(cpu_s=0.5)
    monkeypatch.setattr("vcbench.models.chat_template.TEMPLATES", process)
    template = ChatTemplate({"default": "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}"})
    with pytest.raises(TaskError, match="it does not end"):
        template.render(USER)
    monkeypatch.setattr(process, "ask", lambda *_: pytest.fail("tried again"))
    with pytest.raises(TaskError, match="is not tried again: it does not end"):
        template.render(USER)
    process.close()


@pytest.mark.parametrize("source", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if 1 %}" * 3000])
def test_a_template_too_deep_to_compile(source: str) -> None:
    with pytest.raises(ModelError, match="does not compile"):
        ChatTemplate({"default": source})


def test_what_json_cannot_hold_is_no_message() -> None:
    with pytest.raises(TaskError, match="holds what JSON cannot"):
        render("{{ messages }}", [{"role": "user", "content": "x", "extra": {1, 2}}])


def test_lone_surrogates_and_line_ends_go_through() -> None:
    assert (
        render("{{ messages[0].content }}", [{"role": "user", "content": "\ud83d\n\r\u2028é"}]) == "\ud83d\n\r\u2028é"
    )


THINKING = (
    "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


def test_arguments_reach_the_template() -> None:
    assert render(THINKING) == "hello"
    assert render(THINKING, variables={"enable_thinking": False}) == "hello<think></think>"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "enable_thinkin",
            "does not read `enable_thinkin`.*it reads enable_thinking \\(did you mean 'enable_thinking'",
        ),
        ("messages", "`messages` is given by vcbench itself"),
        ("add_generation_prompt", "is given by vcbench itself"),
    ],
)
def test_arguments_that_change_nothing_are_refused(name: str, message: str) -> None:
    template = ChatTemplate({"default": THINKING})
    template.check_arguments({"enable_thinking": False})

    with pytest.raises(ModelError, match=message):
        template.check_arguments({name: 1})
