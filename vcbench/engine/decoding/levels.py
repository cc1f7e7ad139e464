"""Levels: who proposes tokens and who checks them. Every level can do both, so that levels can be stacked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.engine.decoding.progress import Progress
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.model.decoder import Block, Decoder

NOT_FINITE = -1


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one request for a level to score: the last `rows` of [last committed token, *drafted]."""

    progress: Progress
    drafted: Sequence[int] = ()
    """All tokens proposed since the last commit."""
    rows: int = 1

    @property
    def token_ids(self) -> list[int]:
        """What goes into the model."""
        return [self.progress.last, *self.drafted][-self.rows :]

    def position(self, row: int) -> int:
        """The place in the output of the token that follows a row."""
        return len(self.progress.token_ids) + len(self.drafted) + 1 - self.rows + row

    def output_before(self, row: int) -> list[int]:
        """The output as it precedes the token that follows a row: what is committed, and the drafts up to there."""
        return [*self.progress.token_ids, *self.drafted[: len(self.drafted) + 1 - self.rows + row]]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a level says about one request's rows: the token that it chooses after each of them.

    choices: a token id a row, or NOT_FINITE. logits: [rows, V], float32.
    """

    choices: list[int]
    logits: Tensor


def choose(span: Span, logits: Tensor, best: list[int]) -> list[int]:
    """The token after each row of a span. `best`: each row's arg-max, or NOT_FINITE, which stays."""
    selector = span.progress.selector
    if selector.takes_best:
        return best
    rows = logits.cpu().numpy()
    return [
        token if token == NOT_FINITE else selector.choose(rows[row], span.output_before(row), span.position(row))
        for row, token in enumerate(best)
    ]


class Level(ABC):
    """Something that continues requests from their last committed token."""

    @abstractmethod
    def propose(self, wanted: Mapping[str, int], active: Sequence[Progress]) -> dict[str, list[int]]:
        """Up to wanted[id] tokens for each active request; fewer when the level has nothing sensible to offer."""

    @abstractmethod
    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        """One forward pass over the rows of each request; their entries stay uncommitted."""

    @abstractmethod
    def commit(self, request_id: str, count: int, verified: FullCache | None) -> None:
        """Keeps the first `count` entries since the last commit, replaced by verified ones if given; drops the rest."""


class CacheLevel(Level):
    """The model itself against one cache a request."""

    def __init__(self, decoder: Decoder, caches: Mapping[str, KVCache]) -> None:
        self.decoder, self.caches = decoder, dict(caches)

    def propose(self, wanted: Mapping[str, int], active: Sequence[Progress]) -> dict[str, list[int]]:
        """Steps of one row a request; a step that is not finite ends that request's draft."""
        drafts: dict[str, list[int]] = {progress.request.id: [] for progress in active}
        going = list(active)
        while going := [
            progress for progress in going if len(drafts[progress.request.id]) < wanted[progress.request.id]
        ]:
            scores = self.score([Span(progress, drafts[progress.request.id]) for progress in going])
            chosen = {key: score.choices[0] for key, score in scores.items()}
            going = [progress for progress in going if chosen[progress.request.id] != NOT_FINITE]
            for progress in going:
                drafts[progress.request.id].append(chosen[progress.request.id])
        return drafts

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        blocks = [Block(self.caches[span.progress.request.id], span.token_ids) for span in spans]
        logits = self.decoder.forward(blocks)
        best = self.decoder.rows.arg_max(logits)
        result, start = {}, 0
        for span in spans:
            rows = slice(start, start + span.rows)
            result[span.progress.request.id] = Scores(choose(span, logits[rows], best[rows]), logits[rows])
            start = rows.stop
        return result

    def commit(self, request_id: str, count: int, verified: FullCache | None) -> None:
        self.caches[request_id].commit(count, verified)

    def full_cache(self, request_id: str) -> FullCache | None:
        """The request's cache if it is a full one: what a lower level may take verified entries from."""
        cache = self.caches[request_id]
        return cache if isinstance(cache, FullCache) else None

    def locate_fault(self, request_id: str, ids: Sequence[int]) -> str:
        """Runs a block once more, watching for the first layer whose output is not finite."""
        cache = self.caches[request_id]
        cache.roll_back()
        found: list[int] = []

        def watch(layer: int, x: Tensor) -> None:
            if not found and not bool(torch.isfinite(x).all()):
                found.append(layer)

        self.decoder.watch = watch
        try:
            self.decoder.forward([Block(cache, ids)])
        finally:
            self.decoder.watch = None
        cache.roll_back()
        return f"layer {found[0]}" if found else "the logits"
