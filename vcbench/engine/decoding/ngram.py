"""Drafts without a model: what followed the last time that the text went as it does now.

The text is the prompt and the output so far, drafts included. Its end is looked for earlier in it, as long a stretch as
there is (`LONGEST` tokens at most; of equals the latest), and what followed there is proposed. Answers that quote their
prompt or repeat themselves are drafted for nothing by this (prompt lookup decoding, A. Saxena 2023; LLMA, Yang et al.,
arXiv 2304.04487). Only the request's own text is looked at, so that records do not depend on what else runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vcbench.engine.decoding.levels import Drafter, Prefilled, Span
from vcbench.engine.kv.cache import EntrySource, KVCache
from vcbench.engine.types import Tally

Ids = NDArray[np.int64]
LONGEST = 64
"""Tokens compared at most. What matched as far will not be told apart by looking further."""


class NgramLevel(Drafter):
    """Continues requests from their own text, where at least `min_match` tokens of its end are found again."""

    def __init__(self, name: str, min_match: int) -> None:
        self.name, self.min_match = name, min_match
        self._texts: dict[str, _Text] = {}

    def admit(self, item: Prefilled) -> None:
        self._texts[item.request.id] = _Text(item.request.prompt_ids, item.request.max_tokens)

    def release(self, request_id: str) -> None:
        del self._texts[request_id]

    def propose(self, spans: Sequence[Span], wanted: Mapping[str, int]) -> dict[str, list[int]]:
        return {
            span.key: continuation(self._texts[span.key].up_to(span), wanted[span.key], self.min_match)
            for span in spans
        }

    def refresh(self, request_id: str, count: int, source: EntrySource) -> None:
        """There is nothing to refresh: drafts come with each span."""

    def commit(self, request_id: str, count: int, source: EntrySource) -> None:
        """There is nothing to commit: the output comes with each span."""

    def tallies(self, request_id: str) -> list[Tally]:
        return [Tally(name=self.name)]

    def caches_of(self, request_id: str) -> list[KVCache]:
        return []


class _Text:
    """A request's prompt and committed output, kept in one array; drafts are written after them and over again."""

    def __init__(self, prompt: Sequence[int], max_tokens: int) -> None:
        self._ids = np.empty(len(prompt) + max_tokens, np.int64)
        self._ids[: len(prompt)] = prompt
        self._prompt, self._known = len(prompt), 0

    def up_to(self, span: Span) -> Ids:
        """The text to the end of the span's drafts; valid until the next call."""
        output = span.progress.token_ids
        start, end = self._prompt + self._known, self._prompt + len(output)
        self._ids[start:end] = output[self._known :]
        self._known = len(output)
        stop = end + len(span.drafted)
        self._ids[end:stop] = span.drafted
        return self._ids[:stop]


def continuation(text: Ids, count: int, min_match: int) -> list[int]:
    """`count` tokens, those that followed where the text's end was found again; none if no `min_match` of it were.

    Where what followed runs into the text's own end, the copy goes on with what it has copied. Cost: LONGEST
    comparisons a token of the text at most, most often little more than one.
    """
    end, length = len(text), 0
    starts = np.arange(1, end)
    while length < min(LONGEST, end - 1):
        longer = starts[starts > length]
        longer = longer[text[longer - 1 - length] == text[end - 1 - length]]
        if not len(longer):
            break
        starts, length = longer, length + 1
    if length < min_match or count < 1:
        return []
    at = int(starts[-1])
    copied: list[int] = text[at : at + count].tolist()
    while len(copied) < count:
        copied.append(copied[len(copied) - (end - at)])
    return copied
