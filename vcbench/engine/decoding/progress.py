"""One request while it is being decoded: what has been committed so far, and whether it has ended."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from vcbench.engine.decoding.stopping import StopRule, TextStream
from vcbench.engine.sampling.selector import Selector
from vcbench.engine.types import FinishReason, Request, Round
from vcbench.errors import NumericError


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that a request was just given: output tokens `first`, `first` + 1, ... and the logits that chose them.

    logits: [len(token_ids), V], float32, on the decoder's device; a copy is needed to keep them.
    """

    request_id: str
    first: int
    token_ids: list[int]
    logits: Tensor


Observer = Callable[[Committed], None]
"""Told of every commit once it is done. It sees what an engine commits and cannot change it."""


class Progress:
    """Committed tokens of one request in one cell, and a hash of the logits that chose them."""

    def __init__(
        self,
        request: Request,
        stream: Callable[[], TextStream] | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.request = request
        self.selector = Selector(request)
        self.token_ids: list[int] = []
        self.rounds: list[Round] = []
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self._stop = StopRule(request, stream)
        self._observe = observe
        self._digest = hashlib.sha256()

    @property
    def last(self) -> int:
        """The last committed token, whose entry no cache holds yet."""
        return self.token_ids[-1]

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.request.max_tokens - len(self.token_ids)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def commit(self, token_ids: Sequence[int], logits: Tensor) -> int:
        """Appends tokens up to the first that ends the output; returns how many. logits: [len(token_ids), V]."""
        first = len(self.token_ids)
        count = self._append(token_ids)
        self._digest.update(logits[:count].contiguous().cpu().numpy().data)
        if self._observe is not None:
            self._observe(Committed(self.request.id, first, self.token_ids[first:], logits[:count]))
        return count

    def _append(self, token_ids: Sequence[int]) -> int:
        """Takes tokens one by one until one ends the output; returns how many."""
        count = 0
        while count < len(token_ids) and not self.finished:
            self.token_ids.append(token_ids[count])
            self.finish_reason = self._stop.push(token_ids[count])
            count += 1
        return count

    def fail(self, error: NumericError) -> None:
        """Ends the request with an error; what was committed stays."""
        self.error, self.finish_reason = str(error), "error"

    def logits_sha256(self) -> str:
        """Hash of every committed token's logits, in order."""
        return self._digest.hexdigest()
