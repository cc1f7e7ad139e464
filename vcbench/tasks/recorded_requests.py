"""One line of recorded traffic: what was asked, what was answered, and what else the log says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vcbench.registry import suggest
from vcbench.tasks.rows import Row
from vcbench.tasks.tool_calls.base import declaration_fault

Source = Literal["prompt", "messages", "prompt_ids"]
SOURCES: tuple[Source, ...] = ("prompt", "messages", "prompt_ids")
OTHER_NAMES: Mapping[str, Source] = {"text": "prompt", "conversations": "messages", "conversation": "messages"}
"""What other tools call the same: `text` in corpora, `conversations` of {from, value} in ShareGPT's files."""
SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "tool": "tool",
    "observation": "tool",
}
"""ShareGPT's `from` and the role that it means."""
BODIES = ("body", "request")
RESPONSES = ("target", "response")
NAMES = ("id", "custom_id", "request_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """What a line asks, in one of three forms, and what was answered.

    functions: what `tools` offers. response: a text; {content, tool_calls: [{name, arguments}]} where functions were
    called; a `target` as it stands; None where the log has none. others: all else, such as `max_tokens`, which is
    recorded and not applied: the run's configuration decides.
    """

    source: Source
    value: Any
    functions: list[Mapping[str, Any]]
    response: Any = None
    others: Mapping[str, Any] = field(default_factory=dict)


def read_request(row: Row) -> RecordedRequest:
    """The request of a line: its own fields, or those of its `body` or `request`.

    Raises TaskError with the line and the field on anything that is no request.
    """
    body = _body(row)
    source, value = _source(body)
    if source == "messages" and value[-1]["role"] == "assistant":
        value, last = value[:-1], value[-1]
        if not value:
            row.refuse("field `messages` holds an assistant's message alone; there is nothing to ask")
    else:
        last = None
    return RecordedRequest(
        source=source,
        value=value,
        functions=_functions(body),
        response=_response(row, last),
        others=_others(row, body),
    )


def _body(row: Row) -> Row:
    """The row itself, or the part of it that was sent to the server."""
    given = [name for name in BODIES if name in row.values]
    if not given:
        return row
    inner = row.values[given[0]]
    double = [name for name in (*SOURCES, *OTHER_NAMES, "tools", *BODIES) if name in row.values and name != given[0]]
    if double:
        row.refuse(f"`{double[0]}` stands beside `{given[0]}`, which holds the request; keep one of them")
    if not isinstance(inner, dict):
        row.refuse(f"field `{given[0]}` must be an object, not {type(inner).__name__}")
    return Row(f"{row.where}, `{given[0]}`", row.number, row.data, inner)


def _source(body: Row) -> tuple[Source, Any]:
    """Which of `SOURCES` there is, with its shape checked."""
    given = asked_in(body.values)
    if len(given) != 1:
        found = " and ".join(f"`{name}`" for name in given) or f"none ({_hint(body)})"
        body.refuse(f"exactly one of `prompt`, `messages` and `prompt_ids` is needed, found {found}")
    value = body.values[given[0]]
    name: Source = next((known for known in SOURCES if known == given[0]), OTHER_NAMES.get(given[0], "prompt"))
    if given[0].startswith("conversation"):
        body = _with_messages(body, given[0])
    whole_numbers = isinstance(value, list) and all(type(item) is int for item in value)
    if name == "prompt" and whole_numbers:
        name = "prompt_ids"
    elif name == "prompt" and not isinstance(value, str):
        body.refuse(f"field `prompt` must be a text or token ids, not {type(value).__name__}")
    elif name == "prompt_ids" and not whole_numbers:
        body.refuse("field `prompt_ids` must be a list of whole numbers")
    elif name == "messages":
        value = [_with_parsed_calls(body, number, message) for number, message in enumerate(body.messages(name))]
    if not value:
        body.refuse(f"field `{given[0]}` is empty; an empty prompt has no answer")
    return name, value


def asked_in(values: Mapping[str, Any]) -> list[str]:
    """The fields that hold what is asked; other tools' names count only where none of ours is there."""
    return [name for name in SOURCES if name in values] or [name for name in OTHER_NAMES if name in values]


def _with_messages(body: Row, field_name: str) -> Row:
    """The row with a conversation of ShareGPT's form as `messages`."""
    messages = []
    for number, turn in enumerate(body.items(field_name)):
        place = f"{field_name}[{number}]"
        if isinstance(turn, dict) and "role" in turn:
            messages.append(turn)
            continue
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            body.refuse(f"field `{place}` must be an object with `from` and a text `value`")
        role = SPEAKERS.get(str(turn.get("from")).lower())
        if role is None:
            body.refuse(f"field `{place}.from` is {turn.get('from')!r}; known: {', '.join(SPEAKERS)}")
        messages.append({"role": role, "content": turn["value"]})
    if not messages:
        body.refuse(f"field `{field_name}` is empty; an empty prompt has no answer")
    return Row(body.where, body.number, body.data, {**body.values, "messages": messages})


def _hint(body: Row) -> str:
    others = [key for key in body.values if key not in NAMES]
    return suggest(others[0], list(SOURCES)) if others else "the line has no other field"


def _functions(body: Row) -> list[Mapping[str, Any]]:
    tools = body.values.get("tools") or []
    if not isinstance(tools, list):
        body.refuse("field `tools` must be a list of objects")
    if body.values.get("functions"):
        body.refuse('field `functions` is the old form; write `tools` of {"type": "function", "function": ...}')
    return [_function(body, f"tools[{number}]", tool) for number, tool in enumerate(tools)]


def _function(body: Row, name: str, tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        body.refuse(f"field `{name}` must be an object with a `function` that has a `name`; other tools are not known")
    if (fault := declaration_fault(function)) is not None:
        body.refuse(f"field `{name}.function{fault[0]}` {fault[1]}")
    return function


def _others(row: Row, body: Row) -> dict[str, Any]:
    known = (*asked_in(row.values), *BODIES, *RESPONSES, *NAMES[:1], "tools", "functions", "meta")
    given = row.values.get("meta", {})
    if not isinstance(given, dict):
        row.refuse(f"field `meta` must be an object, not {type(given).__name__}")
    others = {key: value for key, value in row.values.items() if key not in known}
    if body is not row:
        sent = (*asked_in(body.values), "tools")
        others["request"] = {key: value for key, value in body.values.items() if key not in sent}
    return {**others, **given}


def _response(row: Row, last: Mapping[str, Any] | None) -> Any:
    """What was answered; a conversation that ends with the assistant's turn holds it itself."""
    given = [name for name in RESPONSES if row.has(name)]
    if len(given) + (last is not None) > 1:
        places = [f"`{name}`" for name in given] + ["an assistant's message at the end"] * (last is not None)
        row.refuse(f"the answer is given twice: {' and '.join(places)}; keep one of them")
    if last is not None:
        return _message(row, "messages[-1]", last)
    if not given or given == ["target"]:
        return row.values.get("target")
    return _completion(row, row.values["response"])


def _completion(row: Row, value: Any) -> Any:
    """The first choice of a server's answer, which batch files wrap once more; None for a failed request."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("body"), dict):
        value = value["body"]
    if isinstance(value, dict) and value.get("error"):
        return None
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    if isinstance(choice.get("message"), dict):
        return _message(row, "response.choices[0].message", choice["message"])
    if not isinstance(choice.get("text"), str):
        row.refuse("field `response` must be a text or a completion with `choices`")
    return choice["text"]


def _message(row: Row, name: str, message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        content = "\n".join(str(part["text"]) for part in content)
    if content is not None and not isinstance(content, str):
        row.refuse(f"field `{name}.content` must be a text")
    calls = [_call(row, f"{name}.tool_calls[{i}]", call) for i, call in enumerate(message.get("tool_calls") or [])]
    return {"content": content or "", "tool_calls": calls} if calls else content


def _with_parsed_calls(body: Row, number: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with the arguments of its calls as objects; interfaces carry them as text."""
    if not message.get("tool_calls"):
        return message
    name = f"messages[{number}].tool_calls"
    if not isinstance(message["tool_calls"], list):
        body.refuse(f"field `{name}` must be a list")
    calls = [
        {**call, "function": _call(body, f"{name}[{index}]", call)} for index, call in enumerate(message["tool_calls"])
    ]
    return {**message, "tool_calls": calls}


def _call(row: Row, name: str, call: Any) -> dict[str, Any]:
    """The name and the arguments of a call."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        row.refuse(f"field `{name}` must be an object with a `function` that has a `name`")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            row.refuse(f"field `{name}.function.arguments` is not JSON ({error})")
    if not isinstance(arguments, dict):
        row.refuse(f"field `{name}.function.arguments` must be an object")
    return {"name": function["name"], "arguments": arguments}
