"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one pair of tags a call."""

from __future__ import annotations

from collections.abc import Sequence

from vcbench.tasks.json_values import skip_space
from vcbench.tasks.tool_calls.base import (
    CallError,
    Parsed,
    Signatures,
    ToolCall,
    call_of,
    read_json,
    written,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
OPENING = f'{OPEN}\n{{"name":'


def parse(text: str, signatures: Signatures) -> Parsed:
    """The calls between tags. The last closing tag may be missing if the JSON before it is whole."""
    calls: list[ToolCall] = []
    errors: list[str] = []
    outside: list[str] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        outside.append(text[at:start])
        try:
            call, at = _call(text, start + len(OPEN))
            calls.append(call)
        except CallError as error:
            errors.append(str(error))
            at = resume(text, start + len(OPEN))
    return Parsed(tuple(calls), "".join([*outside, text[at:]]).strip(), tuple(errors))


def write(calls: Sequence[ToolCall]) -> str:
    """Each call on three lines, as the models' own templates have them."""
    return "\n".join(f"{OPEN}\n{written(call.as_dict())}\n{CLOSE}" for call in calls)


def resume(text: str, start: int) -> int:
    """Where reading goes on after a broken call: after its closing tag, else at the next opening one."""
    following = text.find(OPEN, start)
    close = text.find(CLOSE, start, following if following >= 0 else len(text))
    if close >= 0:
        return close + len(CLOSE)
    return following if following >= 0 else len(text)


def _call(text: str, start: int) -> tuple[ToolCall, int]:
    value, end = read_json(text, start)
    call = call_of(value, "arguments")
    end = skip_space(text, end)
    if text.startswith(CLOSE, end):
        return call, end + len(CLOSE)
    if end < len(text) and not text.startswith(OPEN, end):
        raise CallError("something follows a call's JSON before its closing tag")
    return call, end
