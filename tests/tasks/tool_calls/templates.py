"""Small chat templates that treat functions, calls and results as models' own do, and a tokenizer that uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.tasks.words import WordTokenizer
from vcbench.models.chat_template import ChatTemplate


def template(calls: str, *, tools: str = "{{ tools | tojson }}", result: str = "{{ m.content }}") -> str:
    """A template that writes the calls of a message `m`, the tools and a result in the given ways."""
    turns = (
        "{% if m.tool_calls %}<s>assistant\n{{ m.content }}" + calls + "</s>\n"
        "{% elif m.role == 'tool' %}<s>tool\n" + result + "</s>\n"
        "{% else %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endif %}"
    )
    listed = "{% if tools %}<s>tools\n" + tools + "</s>\n{% endif %}"
    return listed + "{% for m in messages %}" + turns + "{% endfor %}<s>assistant\n"


def each(call: str) -> str:
    return "{% for call in m.tool_calls %}" + call + "{% endfor %}"


XML = """
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}
<parameter={{ key }}>
{{ value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
</parameter>
{% endfor %}
</function>
</tool_call>"""
ONE = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
NINE = "{% if call.id | length != 9 %}{{ raise_exception('an id has nine characters') }}{% endif %}"

HERMES = template(each("\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>"))
QWEN3_CODER = template(each(XML))
MISTRAL = template(
    "[TOOL_CALLS][" + each(NINE + "{{ call.function | tojson }}{{ '' if loop.last else ', ' }}") + "]",
    result="[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]",
)
LLAMA3 = template(
    ONE + each('{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'),
    result="{{ {'output': m.content} | tojson }}",
)
BY_FORMAT = {"hermes": HERMES, "qwen3-coder": QWEN3_CODER, "mistral": MISTRAL, "llama3-json": LLAMA3}

UNKNOWN = template(each("<{{ call.function.name }}>{{ call.function.arguments.values() | list }}</>"))
DROPS_RESULTS = template(each("{{ call.function | tojson }}"), result="")
DROPS_CALLS = template("")
DROPS_FUNCTIONS = template(each("{{ call.function | tojson }}"), tools="")
REFUSES_RESULTS = template(each("{{ call.function | tojson }}"), result="{{ raise_exception('no such role: tool') }}")
PLAIN = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}<s>assistant\n"


class TemplateTokenizer(WordTokenizer):
    """Words, and a conversation by a template."""

    def __init__(self, source: str | None) -> None:
        super().__init__()
        self.template = ChatTemplate({"default": source}) if source is not None else None

    @property
    def has_template(self) -> bool:
        return self.template is not None

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        assert self.template is not None
        return self.template.render(messages, tools=tools)

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return self.encode(self.render(messages, tools=tools))
