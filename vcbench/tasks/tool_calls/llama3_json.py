"""Llama 3.1 and later: bare JSON objects of `name` and `parameters`, several with `;` between them."""

from __future__ import annotations

import re
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

TAG = "<|python_tag|>"
OPENING = '{"name":'
CALL = r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"'
MEANT = re.compile(CALL)
"""What is meant as a call wherever it stands; other objects are, at the beginning or right after a call."""
NEXT = re.compile(rf"[;\n] {{0,8}}(?={CALL})")
"""Where reading goes on after a broken call, so that objects inside of it are not taken for calls."""


def parse(text: str, signatures: Signatures) -> Parsed:
    """The objects that are calls, after a `<|python_tag|>` or without one; the rest is the text around them."""
    tagged, text = TAG in text, text.replace(TAG, "")
    calls: list[ToolCall] = []
    errors: list[str] = []
    outside = [""]
    at = skip_space(text, 0)
    while (start := text.find("{", at)) >= 0:
        outside[-1] += text[at:start]
        meant = bool(MEANT.match(text, start)) or not outside[-1].strip("; \t\n")
        at = start + 1
        try:
            value, at = read_json(text, start)
            calls.append(call_of(value, "parameters", "arguments"))
            outside.append("")
        except CallError as error:
            if not meant:
                outside[-1] += text[start:at]
                continue
            errors.append(str(error))
            outside.append("")
            if at == start + 1:
                following = NEXT.search(text, at)
                at = following.end() if following else len(text)
    outside[-1] += text[at:]
    if tagged and not calls and not errors:
        errors.append(f"{TAG} is followed by something other than JSON")
    around = [part.strip("; \t\n") for part in outside]
    return Parsed(tuple(calls), "\n".join(filter(None, around)), tuple(errors))


def write(calls: Sequence[ToolCall]) -> str:
    """The calls one after the other."""
    return "; ".join(written({"name": call.name, "parameters": dict(call.arguments)}) for call in calls)
