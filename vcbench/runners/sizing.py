"""Sensible budgets for one's own prompts: read, recognised, measured, before any model runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcbench.errors import TaskError
from vcbench.models.architecture import Architecture
from vcbench.models.rough import RoughTokenizer
from vcbench.models.shapes import parameter_count
from vcbench.tasks.base import PromptTokenizer
from vcbench.tasks.recorded_requests import BODIES, NAMES, RecordedRequest, asked_in, read_request
from vcbench.tasks.rows import Row, identified, read_rows

FORMS: Mapping[str, str] = {
    "prompt": "lines of `prompt`",
    "text": "lines of `text`",
    "messages": "OpenAI chat messages",
    "prompt_ids": "token ids",
    "conversations": "ShareGPT conversations",
    "conversation": "ShareGPT conversations",
}
STEP = 64
DEFAULT_ANSWER_TOKENS = 256
LONGEST_ANSWER_TOKENS = 4096
FIRST_LOOK = 20
"""Prompts of a first run; the others are a matter of time."""
LARGEST_BATCH = 8
SHARE_FOR_CACHES = 0.5
"""Of the memory that weights leave free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A file of prompts. lengths, answers: tokens, sorted; `answers` of the recorded responses alone.

    cap: the largest `max_tokens` that a recorded request asked for, if any did.
    """

    form: str
    lengths: Sequence[int]
    answers: Sequence[int]
    cap: int | None

    def at(self, share: float) -> int:
        """The length that this share of the prompts does not exceed."""
        return self.lengths[min(len(self.lengths) - 1, int(share * len(self.lengths)))]


def measure(path: Path, tokenizer: PromptTokenizer) -> Measured:
    """Form and lengths of the prompts in a file.

    Raises TaskError with the place and what is wrong with it: a row that is no request, or a file without any.
    """
    if path.is_dir():
        raise TaskError(f"{path} is a directory; give the file with the prompts")
    rough = RoughTokenizer()
    forms: Counter[str] = Counter()
    lengths, answers, caps = [], [], []
    for _, row in identified(read_rows(path), *NAMES, numbered=True):
        request = read_request(row)
        forms[_form(row)] += 1
        lengths.append(_tokens(request, tokenizer))
        if (answer := _answer(request.response)) is not None:
            answers.append(rough.count(answer))
        caps += _caps(request.others)
    if not lengths:
        raise TaskError(f"{path} holds no prompts; give a file with one JSON object a line")
    found = ", ".join(f"{count} x {form}" if len(forms) > 1 else form for form, count in forms.most_common())
    answered = f", {len(answers)} with a recorded answer" if answers else ""
    return Measured(
        form=found + answered,
        lengths=sorted(lengths),
        answers=sorted(answers),
        cap=max(caps, default=None),
    )


def answer_tokens(measured: Measured, context: int) -> tuple[int, str]:
    """New tokens per request, and why so many."""
    most = max(1, min(LONGEST_ANSWER_TOKENS, context // 2))
    if measured.answers:
        long = measured.answers[min(len(measured.answers) - 1, int(0.95 * len(measured.answers)))]
        return min(most, _rounded(long)), "19 of 20 recorded answers are no longer"
    if measured.cap is not None:
        return min(most, measured.cap), "the largest `max_tokens` of the recorded requests"
    return min(most, DEFAULT_ANSWER_TOKENS), "no answers are recorded to go by"


def context_tokens(measured: Measured, context: int, tokens: int) -> tuple[int, str]:
    """The longest prompt to ask, and how many are longer."""
    room = context - tokens
    longer = sum(length > room for length in measured.lengths)
    if longer:
        return room, f"all that the model's context of {context} leaves; about {longer} prompts are longer and left out"
    longest = min(room, _rounded(round(measured.lengths[-1] * 1.25)))
    return longest, f"the longest prompt has about {measured.lengths[-1]}; longer ones are left out and counted"


def batch_size(architecture: Architecture, tokens: int, *, memory: int, element_bytes: int) -> int:
    """How many requests of `tokens` tokens are decoded together in `memory` bytes: full and compressed caches."""
    free = (memory - parameter_count(architecture) * element_bytes) * SHARE_FOR_CACHES
    each = 2 * tokens * architecture.kv_bytes_per_token(element_bytes)
    return max(1, min(LARGEST_BATCH, int(free // each)))


def _form(row: Row) -> str:
    body = next((row.values[name] for name in BODIES if name in row.values), None)
    values = body if isinstance(body, dict) else row.values
    form = FORMS[asked_in(values)[0]]
    return form if body is None else f"recorded requests ({form})"


def _tokens(request: RecordedRequest, tokenizer: PromptTokenizer) -> int:
    if request.source == "prompt_ids":
        return len(request.value)
    messages = request.value if request.source == "messages" else [{"role": "user", "content": request.value}]
    rough = RoughTokenizer()
    try:
        return len(tokenizer.chat(messages, tools=request.functions))
    except Exception:  # noqa: BLE001 -- a template that takes no functions, say; a length is all that is wanted here
        return len(rough.chat(messages, tools=request.functions))


def _answer(response: Any) -> str | None:
    if isinstance(response, str):
        return response
    if isinstance(response, dict) and isinstance(response.get("content"), str):
        return f"{response['content']}{response.get('tool_calls') or ''}"
    return None


def _caps(others: Mapping[str, Any]) -> list[int]:
    sent = others.get("request", others)
    names = ("max_tokens", "max_completion_tokens")
    values = [sent.get(name) for name in names] if isinstance(sent, Mapping) else []
    return [value for value in values if type(value) is int and value > 0]


def _rounded(tokens: int) -> int:
    """Up to the next multiple of `STEP`."""
    return max(STEP, -(-tokens // STEP) * STEP)
