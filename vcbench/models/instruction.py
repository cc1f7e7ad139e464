"""Instructions to a model that has just read a prompt: its next turn, in the model's own chat format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

_ANSWER = "0"
_QUESTION = "1"


class ChatTokenizer(Protocol):
    """What is needed of a tokenizer."""

    @property
    def has_template(self) -> bool:
        """Whether `render` can be used."""

    def encode(self, text: str) -> list[int]:
        """Ids of text in which special tokens are spelled out."""

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation as text, up to where the next answer begins."""


class InstructionWriter:
    """Writes turns for one model; call it with a text and the ids of a quotation that follows the text.

    With a chat template the ids end the turn in progress, pose the instruction and open the answer; without one they
    are the plain text on a line of its own.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._before, self._after = _turn(tokenizer) if tokenizer.has_template else ("\n\n", "\n")

    def __call__(self, text: str, quote: Sequence[int]) -> list[int]:
        encode = self._tokenizer.encode
        if not quote:
            return encode(self._before + text + self._after)
        return [*encode(self._before + text + " "), *quote, *encode(self._after)]


def _turn(tokenizer: ChatTokenizer) -> tuple[str, str]:
    """The text between the start of an answer and a following instruction, and from there to the next answer."""
    messages = [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _QUESTION},
    ]
    opening = tokenizer.render(messages[:1])
    both = tokenizer.render(messages)
    rest = both[len(opening) :] if both.startswith(opening) else both[both.rindex(_ANSWER) :]
    before, _, after = rest.removeprefix(_ANSWER).rpartition(_QUESTION)
    return before, after
