"""One's own prompts, such as production traffic: logs of requests with or without their recorded responses."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vcbench.errors import VcbenchError
from vcbench.metrics.alignment import common_subsequence
from vcbench.registry import register
from vcbench.tasks.base import (
    Answer,
    Metric,
    Prompt,
    PromptTokenizer,
    Question,
    Task,
    TaskOptions,
    Value,
    as_needed,
    checked,
    excluding,
)
from vcbench.tasks.budget import over
from vcbench.tasks.recorded_requests import NAMES, RecordedRequest, read_request
from vcbench.tasks.rows import Row, identified
from vcbench.tasks.source import SAMPLE, rows_of
from vcbench.tasks.tool_calls.base import Signature, ToolCall, same_calls
from vcbench.tasks.tool_calls.chat import Wanted, dialect_of
from vcbench.tasks.tool_calls.formats import parse

SAMPLE_FILE = "trace.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TaskOptions):
    """Which file, and how a `prompt` becomes tokens."""

    path: str = field(default="", metadata={"doc": "The file, relative to the working directory."})
    format: Literal["chat", "raw"] = field(
        default="chat",
        metadata={"doc": "`chat` makes a `prompt` the user's turn of the chat template; `raw` adds no token at all."},
    )
    tool_call_format: Wanted = field(
        default="auto",
        metadata={"doc": "How the model writes calls; `auto` is the form of its chat template, hermes without one."},
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
        Metric(name="exact_response", summary="exactly the recorded response, white space at its ends aside"),
        Metric(
            name="response_similarity",
            summary="longest common subsequence of words with the recorded response, as F1",
            kind="mean",
            headline=True,
        ),
        Metric(name="exact_calls", summary="exactly the recorded calls of functions, in any order"),
        Metric(name="same_as_full", summary="exactly the answer of full KV, where that gives one"),
    )

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The file's prompts in its order, as many as `limit` asks for; lines that are no request are excluded."""
        options = self.options
        assert isinstance(options, Options)
        self.excluded = []
        made: list[Prompt] = []
        rows = identified(rows_of(options.path, SAMPLE_FILE), *NAMES, numbered=True)
        for name, row in as_needed(rows, made, limit):
            with excluding(self.excluded, name):
                prompt = _prompt(row, name, read_request(row), tokenizer, options)
                if (exclusion := over(prompt.id, len(prompt.ids), options.max_context_tokens)) is not None:
                    self.excluded.append(exclusion)
                else:
                    made.append(prompt)
        return checked(made, task="trace", excluded=self.excluded)

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """Agreement with the recorded response, where there is one, and with full KV."""
        target = question.target
        recorded = target if isinstance(target, str) else None
        return {
            "exact_response": None if recorded is None else answer.text.strip() == recorded.strip(),
            "response_similarity": None if recorded is None else similarity(answer.text, recorded),
            "exact_calls": _exact_calls(question, answer),
            "same_as_full": _same_answer(answer, reference),
        }


def _same_answer(answer: Answer, reference: Answer | None) -> bool | None:
    """None where full KV's thought did not end, so that it gives no answer."""
    return answer.text == reference.text if reference is not None and reference.thought_ended else None


def _exact_calls(question: Question, answer: Answer) -> bool | None:
    """Names and arguments, no broken call beside them; None where no calls are recorded, or no functions offered."""
    target, about = question.target, question.meta.get("functions")
    if about is None or not isinstance(target, dict) or "tool_calls" not in target:
        return None
    signatures = {name: Signature.load(values) for name, values in about["signatures"].items()}
    given = parse(answer.text, about["format"], signatures)
    return not given.errors and same_calls(given.calls, [ToolCall.of(call) for call in target["tool_calls"]])


def similarity(text: str, other: str) -> float:
    """0 to 1: the longest common subsequence of words, twice over the words of both; 1 if both have none."""
    ours, theirs = text.split(), other.split()
    total = len(ours) + len(theirs)
    return 2 * common_subsequence(ours, theirs) / total if total else 1.0


def _prompt(row: Row, name: str, request: RecordedRequest, tokenizer: PromptTokenizer, options: Options) -> Prompt:
    ids, about = _ids(row, request, tokenizer, options)
    _check_ids(row, request.source, ids, getattr(tokenizer, "vocab_size", None))
    synthetic = {} if options.path else {"synthetic": True, "source": SAMPLE}
    return Prompt(
        id=name,
        ids=tuple(ids),
        document_sha256=hashlib.sha256(row.data).hexdigest(),
        target=request.response,
        meta={**request.others, **about, **synthetic, "line": row.number},
    )


def _ids(
    row: Row, request: RecordedRequest, tokenizer: PromptTokenizer, options: Options
) -> tuple[Sequence[int], dict[str, Any]]:
    """The token ids, and for a request with functions how they were given."""
    value: Any = request.value
    if request.source == "prompt_ids":
        return value, {}
    if request.source == "prompt" and options.format == "raw":
        return tokenizer.encode(value), {}
    messages = value if request.source == "messages" else [{"role": "user", "content": value}]
    try:
        if not request.functions and all(message["role"] != "tool" for message in messages):
            return tokenizer.chat(messages), {}
        return _ids_with_functions(messages, request.functions, tokenizer, options.tool_call_format)
    except (VcbenchError, ValueError) as error:
        row.refuse(f"field `{request.source}` does not fit the model's chat template: {error}")


def _ids_with_functions(
    messages: Sequence[Mapping[str, Any]],
    functions: Sequence[Mapping[str, Any]],
    tokenizer: PromptTokenizer,
    wanted: Wanted,
) -> tuple[Sequence[int], dict[str, Any]]:
    dialect = dialect_of(tokenizer, wanted)
    signatures = {str(f["name"]): Signature.of(f.get("parameters") or {}).as_dict() for f in functions}
    about = {"functions": {**dialect.as_meta(), "signatures": signatures}}
    return dialect.ids(tokenizer, messages, functions), about


def _check_ids(row: Row, source: str, ids: Sequence[int], vocab_size: int | None) -> None:
    if not ids:
        row.refuse(f"field `{source}` gives no tokens")
    highest = vocab_size - 1 if vocab_size is not None else None
    for position, token in enumerate(ids):
        if token < 0 or (highest is not None and token > highest):
            bound = f"0 to {highest}" if highest is not None else "0 or more"
            row.refuse(f"field `{source}`: token id {token} at position {position} is outside the vocabulary ({bound})")
