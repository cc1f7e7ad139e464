"""The embedded sample, read, and a model that answers with the golden calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vcbench.tasks.base import Answer, Prompt, PromptTokenizer, Question, Value
from vcbench.tasks.cfb.conversations import Conversation, read_conversation
from vcbench.tasks.complexfuncbench import SAMPLE, CfbOptions, ComplexFuncBench
from vcbench.tasks.rows import identified
from vcbench.tasks.source import rows_of
from vcbench.tasks.tool_calls.base import ToolCall
from vcbench.tasks.tool_calls.formats import FORMATS, FormatName


def sample() -> list[Conversation]:
    return [read_conversation(name, row, None) for name, row in identified(rows_of("", SAMPLE), "id")]


def task(**options: Any) -> ComplexFuncBench:
    return ComplexFuncBench(CfbOptions(**options))


def question(prompt: Prompt) -> Question:
    return Question(id=prompt.id, target=prompt.target, meta=prompt.meta)


def answer(text: str) -> Answer:
    return Answer(text=text, token_ids=[], finish_reason="stop")


def calls_of(prompt: Prompt) -> list[ToolCall]:
    """The golden calls of the first step that a prompt's record names."""
    return [ToolCall.of(call) for call in prompt.target["steps"][0]]


def golden(prompt: Prompt, name: FormatName) -> str:
    return FORMATS[name].write(calls_of(prompt))


def score(made: ComplexFuncBench, prompt: Prompt, text: str, reference: str | None = None) -> dict[str, Value]:
    given = answer(reference) if reference is not None else None
    return dict(made.score(question(prompt), answer(text), given))


def talk(
    made: ComplexFuncBench, prompt: Prompt, texts: list[str], tokenizer: PromptTokenizer
) -> Iterator[tuple[Prompt, dict[str, Value]]]:
    """Every turn's prompt and scores, as long as the conversation goes on."""
    for text in texts:
        yield prompt, score(made, prompt, text)
        following = made.follow_up(prompt, answer(text), tokenizer)
        if following is None:
            return
        prompt = following
    raise AssertionError("the conversation goes on")
