"""The known tool-call formats by name."""

from __future__ import annotations

from typing import Literal

from vcbench.tasks.reasoning import split
from vcbench.tasks.tool_calls import hermes, llama3_json, mistral, qwen3_coder
from vcbench.tasks.tool_calls.base import Format, Parsed, Signatures

FormatName = Literal["hermes", "qwen3-coder", "llama3-json", "mistral"]
FORMATS: dict[FormatName, Format] = {
    "hermes": hermes,
    "qwen3-coder": qwen3_coder,
    "mistral": mistral,
    "llama3-json": llama3_json,
}
"""The most specific first: bare JSON would also be found inside the others' tags."""


def parse(text: str, name: FormatName, signatures: Signatures) -> Parsed:
    """The calls of an answer in that format; what a model reasons before it answers is no part of it."""
    return FORMATS[name].parse(split(text).answer, signatures)
