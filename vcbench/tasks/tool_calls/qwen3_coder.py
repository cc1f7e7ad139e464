"""Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`.

Values are written as text, so each gets its type from the function's schema (`schema.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vcbench.tasks.json_values import skip_space
from vcbench.tasks.tool_calls.base import CallError, Parsed, Signatures, ToolCall, written
from vcbench.tasks.tool_calls.hermes import CLOSE, OPEN, resume
from vcbench.tasks.tool_calls.schema import value_of

OPENING = f"{OPEN}\n<function="
FUNCTION = re.compile(r"<function=([^<>\n]+)>")
BEGINNING = re.compile(rf"{OPEN}|{FUNCTION.pattern}")
# A parameter ends with its own tag, before the next one or the function's end, so that a text may speak of tags. No
# other call may begin inside, or a broken call would swallow the next one.
PARAMETER = re.compile(
    r"\s*<parameter=([^<>\n]+)>((?:(?!<parameter=|</tool_call>\s*<tool_call>|<tool_call>\s*<function=).)*?)"
    r"</parameter>(?=\s*(?:<parameter=|</function>))",
    re.DOTALL,
)
# Models leave the tag out now and then, so the next one ends the parameter too.
UNENDED_PARAMETER = re.compile(
    r"\s*<parameter=([^<>\n]+)>((?:(?!<parameter=|<function=|<tool_call>).)*?)"
    r"(?:</parameter>|(?=<parameter=)|(?=</function>))",
    re.DOTALL,
)
END = re.compile(r"\s*</function>")


def parse(text: str, signatures: Signatures) -> Parsed:
    """The calls of an answer; the tags around a function may be missing, as models leave them out now and then."""
    calls: list[ToolCall] = []
    errors: list[str] = []
    outside: list[str] = []
    at = 0
    while (found := BEGINNING.search(text, at)) is not None:
        start = found.start()
        outside.append(text[at:start])
        begin = skip_space(text, start + len(OPEN)) if text.startswith(OPEN, start) else start
        try:
            call, at = _call(text, begin, signatures)
            calls.append(call)
        except CallError as error:
            errors.append(str(error))
            at = resume(text, max(begin, start + 1))
    return Parsed(tuple(calls), "".join([*outside, text[at:]]).strip(), tuple(errors))


def write(calls: Sequence[ToolCall]) -> str:
    """Texts as they are, everything else as JSON."""
    return "\n".join(_written(call) for call in calls)


def _call(text: str, start: int, signatures: Signatures) -> tuple[ToolCall, int]:
    opening = FUNCTION.match(text, start)
    if opening is None:
        raise CallError("a call needs <function=NAME>")
    name, at = opening[1].strip(), opening.end()
    signature = signatures.get(name)
    arguments: dict[str, Any] = {}
    while (found := PARAMETER.match(text, at) or UNENDED_PARAMETER.match(text, at)) is not None:
        key = found[1].strip()
        if key in arguments:
            raise CallError(f"parameter {key!r} is given twice")
        value = found[2].removeprefix("\n").removesuffix("\n")
        arguments[key] = value if signature is None else value_of(value, signature.schema, key)
        at = found.end()
    closing = END.match(text, at)
    if closing is None:
        raise CallError(f"the call of {name!r} has no end")
    end = skip_space(text, closing.end())
    return ToolCall(name, arguments), end + len(CLOSE) if text.startswith(CLOSE, end) else closing.end()


def _written(call: ToolCall) -> str:
    lines = [OPEN, f"<function={call.name}>"]
    for key, value in call.arguments.items():
        lines += [f"<parameter={key}>", value if isinstance(value, str) else written(value), "</parameter>"]
    return "\n".join([*lines, "</function>", CLOSE])
