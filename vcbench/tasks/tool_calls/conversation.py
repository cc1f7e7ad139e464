"""Recorded conversations with functions, as a model is given them, whether its template takes functions or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from vcbench.tasks.tool_calls.base import ToolCall, written
from vcbench.tasks.tool_calls.formats import FORMATS, FormatName

Message = Mapping[str, Any]

INSTRUCTION = """\
These functions can be called, one JSON object a line:

{functions}

To call some, answer with the calls alone, each written like this one:

{example}

Put calls that do not need each other's results into one answer. The result of each comes back between <tool_response> \
and </tool_response>. Once no more calls are needed, answer the request in plain text.

{request}"""


def renumbered(messages: Sequence[Message], *, parallel: bool = True) -> list[dict[str, Any]]:
    """The messages for a chat template: calls with ids that all templates take, and a content, empty if it must be.

    Servers give ids of their own; Mistral's template takes nine letters and digits only. Unless `parallel`, calls of
    one turn are made one after the other, each followed by its result.
    """
    numbers: dict[Any, int] = {}

    def renamed(key: Any) -> str:
        return f"call{numbers.setdefault(key, len(numbers)):05d}"

    made = []
    for message in messages:
        copy = dict(message)
        if copy.get("tool_calls"):
            copy["tool_calls"] = [{**call, "id": renamed(call.get("id"))} for call in copy["tool_calls"]]
            copy["content"] = copy.get("content") or ""
        if "tool_call_id" in copy:
            copy["tool_call_id"] = renamed(copy["tool_call_id"])
        made.append(copy)
    return made if parallel else list(_one_by_one(made))


def _one_by_one(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each call in a turn of its own, with its result right after it; other results follow as they came."""
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            yield message
            continue
        results = list(takewhile(lambda other: other["role"] == "tool", rest))
        del rest[: len(results)]
        for number, call in enumerate(calls):
            yield {**message, "content": "" if number else message["content"], "tool_calls": [call]}
            own = [result for result in results if result.get("tool_call_id") == call["id"]]
            yield from own
            results = [result for result in results if result not in own]
        yield from results


def instructed(
    messages: Sequence[Message], functions: Sequence[Mapping[str, Any]], name: FormatName
) -> list[dict[str, Any]]:
    """The messages for a template without functions: those stand before the first request, calls and results as text.

    Calls in the messages are those of OpenAI's interface, with arguments as objects.
    """
    made = list(_written(messages, name))
    first = next((number for number, message in enumerate(made) if message["role"] == "user"), None)
    if functions and first is not None:
        made[first]["content"] = INSTRUCTION.format(
            functions="\n".join(map(written, functions)),
            example=FORMATS[name].write([ToolCall("function_name", {"parameter": "value"})]),
            request=made[first]["content"],
        )
    return made


def _written(messages: Sequence[Message], name: FormatName) -> Iterator[dict[str, Any]]:
    """Results of one turn's calls come back together, as the user's turn."""
    for role, turn in groupby(messages, key=lambda message: message["role"]):
        if role == "tool":
            results = (f"<tool_response>\n{_text(message)}\n</tool_response>" for message in turn)
            yield {"role": "user", "content": "\n".join(results)}
            continue
        for message in turn:
            calls = [ToolCall.of(call["function"]) for call in message.get("tool_calls") or []]
            text = _text(message)
            if calls:
                said = f"{text}\n\n" if text else ""
                text = said + FORMATS[name].write(calls)
            yield {"role": role, "content": text}


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part if isinstance(part, str) else str(part["text"]) for part in content)
