"""What a record line says of an answer beside its ids."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vcbench.engine.types import Generation
from vcbench.runners.recording import request_line
from vcbench.tasks.base import Prompt

WORDS = ["<think>", "</think>", "5", "7", "\n", "assistant", "<end>"]


class Words:
    """A tokenizer of seven words."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(WORDS[i] for i in ids)


def thinking(output: list[int], prompt: tuple[int, ...], reason: Any = "stop") -> int | None:
    cell: Any = SimpleNamespace(id="c", task=SimpleNamespace(name="t"))
    tokenizer: Any = Words()
    made = Generation(request_id="r", token_ids=output, finish_reason=reason)
    asked = Prompt(id="r", ids=prompt, document_sha256="")
    return request_line(cell, asked, made, tokenizer, {6}).thinking_tokens


@pytest.mark.parametrize(
    ("output", "prompt", "expected"),
    [
        ([3, 6], (5,), 0),
        ([0, 2, 2, 1, 4, 3, 6], (5,), 4),
        ([0, 2, 1, 3, 0, 2, 1, 3, 6], (5,), 6),
        ([2, 2, 1, 3, 6], (5, 0, 4), 3),
        ([2, 2, 2], (5, 0, 4), 3),
        ([2, 2, 2], (5,), 0),
        ([0, 2, 2], (5,), 3),
    ],
)
def test_tokens_of_thoughts_are_counted(output: list[int], prompt: tuple[int, ...], expected: int) -> None:
    assert thinking(output, prompt, "stop" if output[-1] == 6 else "length") == expected
