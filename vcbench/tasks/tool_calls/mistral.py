"""Mistral: `[TOOL_CALLS]` before a JSON array of calls, or, newer, before each `name[ARGS]{...}`."""

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

TAG = "[TOOL_CALLS]"
OPENING = f'{TAG}[{{"name":'
# Decoders that drop special tokens drop [ARGS] and [CALL_ID]; the arguments' brace still ends the name.
NAMED = re.compile(r"\s*+([^\s\[\]{}]++)\s*+(?:\[CALL_ID\][^\[{]*+)?(?:\[ARGS\])?\s*+(?=\{)")


def parse(text: str, signatures: Signatures) -> Parsed:
    """The calls after each tag, in either form."""
    calls: list[ToolCall] = []
    errors: list[str] = []
    outside: list[str] = []
    at = 0
    while (start := text.find(TAG, at)) >= 0:
        outside.append(text[at:start])
        begin = start + len(TAG)
        try:
            found, at = _calls(text, begin)
            calls += found
        except CallError as error:
            errors.append(str(error))
            following = text.find(TAG, begin)
            at = following if following >= 0 else len(text)
    return Parsed(tuple(calls), "".join([*outside, text[at:]]).strip(), tuple(errors))


def write(calls: Sequence[ToolCall]) -> str:
    """The array, which tokenizers of every version take."""
    return TAG + written([call.as_dict() for call in calls])


def _calls(text: str, start: int) -> tuple[list[ToolCall], int]:
    if text.startswith("[", skip_space(text, start)):
        values, end = read_json(text, start)
        if not values:
            raise CallError("the array holds no call")
        return [call_of(value, "arguments") for value in values], end
    named = NAMED.match(text, start)
    if named is None:
        raise CallError(f"{TAG} is followed neither by an array nor by a name and its arguments")
    arguments, end = read_json(text, named.end())
    return [call_of({"name": named[1], "arguments": arguments}, "arguments")], end
