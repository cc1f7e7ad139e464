"""Levels: who proposes tokens and who checks them. Every level can do both, so that levels can be stacked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.engine.cache import FullCache, KVCache
from vcbench.engine.decoder import Block, Decoder
from vcbench.engine.progress import Progress

NOT_FINITE = -1


@dataclass(frozen=True, slots=True)
class Scores:
    """What a level says about one request's block: the greedy choice after each of its rows.

    choices: a token id a row, or NOT_FINITE. logits: [rows, V], float32.
    """

    choices: list[int]
    logits: Tensor


class Level(ABC):
    """Something that continues requests from their last committed token."""

    @abstractmethod
    def propose(self, wanted: Mapping[str, int], active: Sequence[Progress]) -> dict[str, list[int]]:
        """Up to wanted[id] tokens for each active request; fewer when the level has nothing sensible to offer."""

    @abstractmethod
    def score(self, blocks: Mapping[str, Sequence[int]]) -> dict[str, Scores]:
        """One forward pass over each request's block; the block's entries stay uncommitted."""

    @abstractmethod
    def commit(self, request_id: str, count: int, verified: FullCache | None) -> None:
        """Keeps the first `count` entries since the last commit, replaced by verified ones if given; drops the rest."""


class CacheLevel(Level):
    """The model itself against one cache a request."""

    def __init__(self, decoder: Decoder, caches: Mapping[str, KVCache]) -> None:
        self.decoder, self.caches = decoder, dict(caches)

    def propose(self, wanted: Mapping[str, int], active: Sequence[Progress]) -> dict[str, list[int]]:
        """Greedy steps of one row a request; a step that is not finite ends that request's draft."""
        drafts: dict[str, list[int]] = {progress.request.id: [] for progress in active}
        latest = {progress.request.id: progress.last for progress in active}
        while True:
            going = [key for key, token in latest.items() if token != NOT_FINITE and len(drafts[key]) < wanted[key]]
            if not going:
                return drafts
            scores = self.score({key: [latest[key]] for key in going})
            for key in going:
                latest[key] = scores[key].choices[0]
                if latest[key] != NOT_FINITE:
                    drafts[key].append(latest[key])

    def score(self, blocks: Mapping[str, Sequence[int]]) -> dict[str, Scores]:
        logits = self.decoder.forward([Block(self.caches[key], ids) for key, ids in blocks.items()])
        choices = self.decoder.rows.arg_max(logits)
        result, start = {}, 0
        for key, ids in blocks.items():
            rows = slice(start, start + len(ids))
            result[key] = Scores(choices[rows], logits[rows])
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
