"""How long a text is for a model whose tokenizer is not here: a rough count, for plans and never for a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

PIECE = re.compile(r" ?[^\W\d_]{1,6}|\d{1,3}| ?_+|\s+|[^\w\s]{1,2}")
"""A word's beginning with the space before it, a few digits, white space, two signs: what vocabularies of 32k to 152k
entries make of English prose and of code, to within a quarter."""
TEMPLATE_TOKENS = 6
"""Tokens of a chat template's marks around one message."""


class RoughTokenizer:
    """Splits text into pieces about as long as a tokenizer's; ids are numbers in order of appearance."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ids: dict[str, int] = {}

    @property
    def bos_id(self) -> None:
        """Not known."""
        return

    @property
    def vocab_size(self) -> None:
        """Not known: any token id in a file is taken as it is."""
        return

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of a text; `decode` gives the text back."""
        return [self._id(piece) for piece in PIECE.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The pieces put together; an id that is none of its own is a space."""
        return "".join(self._pieces[index] if index < len(self._pieces) else " " for index in ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """A conversation with room for a template's marks."""
        offered = [json.dumps(list(tools), ensure_ascii=False)] if tools else []
        ids: list[int] = []
        for text in [*offered, *map(_text, messages), ""]:
            ids += [self._id("\n"), *self.encode(text)] + [self._id("<mark>")] * (TEMPLATE_TOKENS - 1)
        return ids

    def count(self, text: str) -> int:
        """How many pieces a text has."""
        return sum(1 for _ in PIECE.finditer(text))

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls")
    return content + (json.dumps(calls, ensure_ascii=False) if calls else "")
