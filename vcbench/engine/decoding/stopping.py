"""When an output ends: stop ids, stop strings, the cap; checked token by token, as one-by-one decoding would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from vcbench.engine.sampling.selector import check_sampling
from vcbench.engine.types import FinishReason, Request
from vcbench.errors import RequestError


class TextStream(Protocol):
    """Turns token ids into text as they come, holding back incomplete characters."""

    def push(self, token_id: int) -> str:
        """The text that this token completes."""


class StopRule:
    """The state of one request's stop conditions. A stop is looked for before the cap, so that it wins a tie."""

    def __init__(self, request: Request, stream: Callable[[], TextStream] | None) -> None:
        self._request = request
        self._longest = max(map(len, request.stop_strings), default=0)
        if self._longest and stream is None:
            raise RequestError(f"request {request.id}: stop strings need a tokenizer")
        self._stream = stream() if self._longest and stream is not None else None
        self._tail = ""
        self._count = 0

    def push(self, token_id: int) -> FinishReason | None:
        """Counts one committed token; the reason to end with it, or None."""
        self._count += 1
        if token_id in self._request.stop_ids or self._completes_string(token_id):
            return "stop"
        return "length" if self._count >= self._request.max_tokens else None

    def _completes_string(self, token_id: int) -> bool:
        if self._stream is None:
            return False
        text, old = self._tail + self._stream.push(token_id), len(self._tail)
        self._tail = text[-(self._longest - 1) :] if self._longest > 1 else ""
        if self._count <= self._request.sampling.min_tokens:
            return False
        return any(text.find(stop, max(0, old - len(stop) + 1)) >= 0 for stop in self._request.stop_strings)


def check_request(request: Request, *, vocab_size: int, max_context: int) -> None:
    """Raises RequestError for a request that cannot be served, naming the numbers."""
    if not request.prompt_ids:
        raise RequestError(f"request {request.id}: the prompt is empty; give at least one token")
    if request.max_tokens < 1:
        raise RequestError(f"request {request.id}: max_tokens is {request.max_tokens}; ask for at least 1")
    wrong = [token for token in request.prompt_ids if not 0 <= token < vocab_size]
    if wrong:
        raise RequestError(
            f"request {request.id}: token id {wrong[0]} is outside the vocabulary of {vocab_size}; "
            "was the prompt made with another tokenizer?"
        )
    check_sampling(request, vocab_size)
    _check_length(request, max_context)


def _check_length(request: Request, max_context: int) -> None:
    total = len(request.prompt_ids) + request.max_tokens
    if total > max_context:
        raise RequestError(
            f"request {request.id}: {len(request.prompt_ids)} prompt tokens + max_tokens {request.max_tokens} = "
            f"{total} exceed the context limit of {max_context}; shorten the prompt or lower max_tokens"
        )


def accepted_prefix(drafts: Sequence[int], targets: Sequence[int]) -> int:
    """How many drafts the verifier agrees with: the longest prefix with drafts[i] == targets[i]."""
    count = 0
    while count < len(drafts) and drafts[count] == targets[count]:
        count += 1
    return count
