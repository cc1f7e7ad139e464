"""A tokenizer in a few lines: words, runs of spaces and single signs, numbered as they first appear."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


class WordTokenizer:
    """Two special tokens frame a turn: 0 begins it, and the text `<answer>` with token 1 ends the prompt."""

    def __init__(self, vocab_size: int = 100_000) -> None:
        self.vocab_size = vocab_size
        self.words = ["<turn>", "<answer>"]
        self.numbers: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        text.encode("utf-8")
        ids = []
        for word in re.findall(r"\w+|\n|[ \t]+|.", text):
            if word not in self.numbers:
                self.numbers[word] = len(self.words)
                self.words.append(word)
            ids.append(self.numbers[word])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[token] for token in ids)

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        ids: list[int] = []
        for message in [*tools, *messages]:
            if message.get("role") == "nobody":
                raise ValueError("no such role: nobody")
            ids += [0, *self.encode(str(message.get("role", "tool"))), *self.encode(str(message.get("content", "")))]
        return [*ids, 1]
