"""Instructions as the next turn of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from vcbench.models.instruction import InstructionWriter


class Letters:
    """One id a character; `template` writes conversations, or is None."""

    def __init__(self, template: str | None) -> None:
        self.template = template

    @property
    def has_template(self) -> bool:
        return self.template is not None

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        assert self.template is not None
        return self.template + "".join(f"<{m['role'][0]}>{m['content']}</>" for m in messages) + "<a>"


def written(template: str | None, text: str, quote: str = "") -> str:
    return "".join(map(chr, InstructionWriter(Letters(template))(text, list(map(ord, quote)))))


@pytest.mark.parametrize("template", ["", "<s>You are 0 or 1.</>"])
def test_ends_the_turn_and_opens_the_next_answer(template: str) -> None:
    assert written(template, "Repeat.") == "</><u>Repeat.</><a>"
    assert written(template, "Repeat:", "abc") == "</><u>Repeat: abc</><a>"


def test_plain_text_without_a_template() -> None:
    assert written(None, "Repeat.") == "\n\nRepeat.\n"
    assert written(None, "Repeat:", "abc") == "\n\nRepeat: abc\n"
