"""One's own prompts, such as production traffic: logs of requests with or without their recorded responses."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vcbench.errors import VcbenchError
from vcbench.registry import register
from vcbench.tasks.base import (
    Answer,
    Exclusion,
    Metric,
    Prompt,
    PromptTokenizer,
    Question,
    Task,
    TaskOptions,
    Value,
    checked,
)
from vcbench.tasks.recorded_requests import NAMES, RecordedRequest, read_request
from vcbench.tasks.rows import Row, identified
from vcbench.tasks.source import SAMPLE, rows_of

SAMPLE_FILE = "trace.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TaskOptions):
    """Which file, and how a `prompt` becomes tokens."""

    path: str = field(default="", metadata={"doc": "The file, relative to the working directory."})
    format: Literal["chat", "raw"] = field(
        default="chat",
        metadata={"doc": "`chat` makes a `prompt` the user's turn of the chat template; `raw` adds no token at all."},
    )
    max_context_tokens: int | None = field(
        default=None, metadata={"doc": "Leave out prompts longer than this; they are counted.", "minimum": 1}
    )


@register("task", "trace")
class TraceTask(Task):
    """One prompt a line. What a line has beside request and response goes to the prompt's `meta`."""

    Options = Options
    summary = "your own prompts or traffic: JSONL of {prompt | messages | prompt_ids} or request bodies, and responses"
    metrics = (
        Metric(name="same_response", summary="exactly the recorded response, white space at its ends aside"),
        Metric(
            name="response_similarity",
            summary="words in common runs with the recorded response, twice over the words of both",
            kind="mean",
            headline=True,
        ),
        Metric(name="same_as_full", summary="exactly the text of full KV"),
    )

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The file's prompts in its order; ids and fields of all lines are checked, beyond the limit too."""
        options = self.options
        assert isinstance(options, Options)
        self.excluded = []
        made: list[Prompt] = []
        for name, row in identified(rows_of(options.path, SAMPLE_FILE), *NAMES, numbered=True):
            request = read_request(row)
            if limit is not None and len(made) >= limit:
                continue
            prompt = _prompt(row, name, request, tokenizer, options)
            if options.max_context_tokens is not None and len(prompt.ids) > options.max_context_tokens:
                reason = f"{len(prompt.ids)} tokens exceed max_context_tokens {options.max_context_tokens}"
                self.excluded.append(Exclusion(id=name, reason=reason))
            else:
                made.append(prompt)
        return checked(made, task="trace")

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """Agreement with the recorded response, where there is one of text, and with full KV."""
        recorded = question.target if isinstance(question.target, str) else None
        return {
            "same_response": None if recorded is None else answer.text.strip() == recorded.strip(),
            "response_similarity": None if recorded is None else similarity(answer.text, recorded),
            "same_as_full": None if reference is None else answer.text == reference.text,
        }


def similarity(text: str, other: str) -> float:
    """0 to 1: words in runs that both texts have in the same order, twice over the words of both; 1 if both have none.

    The runs are found as in Ratcliff and Obershelp's pattern matching, the longest first.
    """
    return difflib.SequenceMatcher(None, text.split(), other.split(), autojunk=False).ratio()


def _prompt(row: Row, name: str, request: RecordedRequest, tokenizer: PromptTokenizer, options: Options) -> Prompt:
    ids = _ids(row, request, tokenizer, options)
    _check_ids(row, request.source, ids, getattr(tokenizer, "vocab_size", None))
    synthetic = {} if options.path else {"synthetic": True, "source": SAMPLE}
    return Prompt(
        id=name,
        ids=tuple(ids),
        document_sha256=hashlib.sha256(row.data).hexdigest(),
        target=request.response,
        meta={**request.others, **synthetic, "line": row.number},
    )


def _ids(row: Row, request: RecordedRequest, tokenizer: PromptTokenizer, options: Options) -> Sequence[int]:
    value: Any = request.value
    if request.source == "prompt_ids":
        ids: Sequence[int] = value
        return ids
    if request.source == "prompt" and options.format == "raw":
        return tokenizer.encode(value)
    messages = value if request.source == "messages" else [{"role": "user", "content": value}]
    try:
        return tokenizer.chat(messages, tools=request.tools)
    except (VcbenchError, ValueError) as error:
        row.refuse(f"field `{request.source}` does not fit the model's chat template: {error}")


def _check_ids(row: Row, source: str, ids: Sequence[int], vocab_size: int | None) -> None:
    if not ids:
        row.refuse(f"field `{source}` gives no tokens")
    highest = vocab_size - 1 if vocab_size is not None else None
    for position, token in enumerate(ids):
        if token < 0 or (highest is not None and token > highest):
            bound = f"0 to {highest}" if highest is not None else "0 or more"
            row.refuse(f"field `{source}`: token id {token} at position {position} is outside the vocabulary ({bound})")
