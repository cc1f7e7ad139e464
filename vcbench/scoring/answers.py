"""Questions and answers as the records hold them, ready for a task's metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vcbench.errors import TaskError
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import PromptLine, RequestLine
from vcbench.tasks.base import Answer, Question

CLOSING_TOKEN = re.compile(r"(<\|[^<>|]*\|>|</s>|<end_of_turn>)\Z")
KEPT_STOP_TOKEN = 1
"""The last schema version whose `text` still has the closing stop token."""


class RecordedMeta(dict[str, Any]):
    """A prompt's meta; a key that was never recorded is an error that says what to do, not a bare KeyError."""

    def __missing__(self, key: str) -> Any:
        raise TaskError(
            f"the records hold no {key!r} for this prompt: an earlier vcbench made them; run the task again to score it"
        )


def question(prompt: PromptLine) -> Question:
    """What was asked."""
    return Question(id=prompt.request, target=prompt.target, meta=RecordedMeta(prompt.meta))


def answer(run: Run, line: RequestLine) -> Answer:
    """What was answered. Records of schema 1 end in the text of the stop token, which is taken off."""
    text = line.text
    prompt = run.prompts.get((line.task, line.request))
    if line.schema <= KEPT_STOP_TOKEN and line.finish_reason == "stop":
        text = CLOSING_TOKEN.sub("", text)
    return Answer(
        text=text,
        token_ids=line.token_ids,
        finish_reason=line.finish_reason,
        prompt_tail=prompt.tail if prompt is not None else "",
    )


def answered(run: Run, cell: CellInfo, task: str) -> dict[str, RequestLine]:
    """The cell's answers that ended without error, by request, in the order of the prompts."""
    return {line.request: line for line in run.requests_of(cell, task) if line.error is None}


def groups(run: Run, task: str) -> dict[str, str]:
    """Which requests belong together (`meta["group"]`), such as the turns of one conversation; often empty."""
    return {
        request: str(prompt.meta["group"])
        for (prompt_task, request), prompt in run.prompts.items()
        if prompt_task == task and prompt.meta.get("group") is not None
    }


def key_of(prompt: PromptLine, key: str) -> str | None:
    """The prompt's `meta[key]` as a heading; None where it has none. A dotted key reaches into mappings."""
    value: Any = prompt.meta
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return f"{value:g}" if isinstance(value, float) else str(value)
