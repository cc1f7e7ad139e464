"""Levels: who proposes tokens and who checks them. Each level drafts for the one above it, the full cache is the last.

A `Drafter` proposes; a `Verifier` can also say which token it would have put after each of a draft. The model against a
cache is both; `ngram.NgramLevel` only proposes. `rounds.Stack` makes a verifier and whoever drafts for it one drafter
again, so that levels can be stacked to any height.

What belongs to tokens that are not committed yet: for drafts p1 .. pm after the last committed token t, a level holds
the entries of t, p1 .. p(m-1) at most; what is missing of them it works out when it next needs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.engine.decoding.progress import Progress
from vcbench.engine.kv.cache import EntrySource, KVCache
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.types import Request, Tally

NOT_FINITE = -1


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A request and the snapshot of its prompt, from which every cell starts."""

    request: Request
    prefill: Prefill


@dataclass(frozen=True, slots=True)
class Span:
    """Where a request stands for a level, and rows to score there: the last `rows` of [last committed, *drafted]."""

    progress: Progress
    drafted: Sequence[int] = ()
    """All tokens proposed since the last commit."""
    rows: int = 1

    @property
    def key(self) -> str:
        """The request's id."""
        return self.progress.request.id

    @property
    def token_ids(self) -> list[int]:
        """What goes into the model for the rows."""
        return self.latest(self.rows)

    def latest(self, count: int) -> list[int]:
        """The last `count` of [last committed token, *drafted]."""
        return [self.progress.last, *self.drafted][-count:]

    def followed_by(self, tokens: Sequence[int], rows: int = 1) -> Span:
        """The span with more drafts after its own."""
        return Span(self.progress, [*self.drafted, *tokens], rows)

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


class Drafter(ABC):
    """Something that proposes how requests go on."""

    @abstractmethod
    def admit(self, item: Prefilled) -> None:
        """Takes in a request as its prompt leaves it."""

    @abstractmethod
    def release(self, request_id: str) -> None:
        """Forgets a request and all that was held for it."""

    @abstractmethod
    def propose(self, spans: Sequence[Span], wanted: Mapping[str, int]) -> dict[str, list[int]]:
        """Up to wanted[id] tokens after each span's drafts; fewer when the level has nothing sensible to offer."""

    @abstractmethod
    def refresh(self, request_id: str, count: int, source: EntrySource) -> None:
        """Of the tokens since the last commit keeps `count`, with the source's entries where entries are held."""

    @abstractmethod
    def commit(self, request_id: str, count: int, source: EntrySource) -> None:
        """Makes the next `count` tokens permanent, with the source's entries where entries are held."""

    @abstractmethod
    def tallies(self, request_id: str) -> list[Tally]:
        """What the levels of this drafter have done for the request, the lowest first."""

    @abstractmethod
    def caches_of(self, request_id: str) -> list[KVCache]:
        """The caches that this drafter's levels hold for the request, the lowest first."""


class Verifier(Drafter):
    """A drafter that can also judge drafts."""

    vocab_size: int

    @abstractmethod
    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        """One forward pass over the rows of each request; their entries stay uncommitted."""

    @abstractmethod
    def roll_back(self, request_id: str, keep: int) -> None:
        """Keeps the entries of the first `keep` tokens since the last committed one and forgets the others."""

    @abstractmethod
    def source(self, request_id: str) -> EntrySource:
        """Where the levels below may take the entries of verified tokens from."""


MakeCache = Callable[[Prefilled], KVCache]


class CacheLevel(Verifier):
    """The model itself against one cache a request."""

    def __init__(self, name: str, decoder: Decoder, make: MakeCache) -> None:
        """`make` gives the cache that a request begins with."""
        self.name, self.decoder, self.make = name, decoder, make
        self.vocab_size = decoder.architecture.vocab_size
        self.caches: dict[str, KVCache] = {}
        self.passes: dict[str, int] = {}

    def admit(self, item: Prefilled) -> None:
        self.caches[item.request.id] = self.make(item)
        self.passes[item.request.id] = 0

    def release(self, request_id: str) -> None:
        del self.caches[request_id], self.passes[request_id]

    def propose(self, spans: Sequence[Span], wanted: Mapping[str, int]) -> dict[str, list[int]]:
        """Steps of one row a request; a step that is not finite ends that request's draft."""
        drafts: dict[str, list[int]] = {span.key: [] for span in spans}
        going = list(spans)
        while going := [span for span in going if len(drafts[span.key]) < wanted[span.key]]:
            scores = self.score([span.followed_by(drafts[span.key]) for span in going])
            chosen = {key: score.choices[0] for key, score in scores.items()}
            going = [span for span in going if chosen[span.key] != NOT_FINITE]
            for span in going:
                drafts[span.key].append(chosen[span.key])
        return drafts

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        """Tokens before the rows whose entries are missing go into the same pass, before them."""
        blocks = []
        for span in spans:
            cache = self.caches[span.key]
            missing = len(span.drafted) + 1 - (cache.tokens - cache.committed)
            if missing < span.rows:
                raise ValueError(f"request {span.key}: {span.rows} rows to score, of which {missing} are new")
            blocks.append(Block(cache, span.latest(missing)))
            self.passes[span.key] += 1
        logits = self.decoder.forward(blocks)
        best = self.decoder.rows.arg_max(logits)
        result, stop = {}, 0
        for span, block in zip(spans, blocks, strict=True):
            stop += len(block.token_ids)
            rows = slice(stop - span.rows, stop)
            result[span.key] = Scores(choose(span, logits[rows], best[rows]), logits[rows])
        return result

    def roll_back(self, request_id: str, keep: int) -> None:
        self.caches[request_id].roll_back(keep)

    def refresh(self, request_id: str, count: int, source: EntrySource) -> None:
        self.caches[request_id].refresh(count, source)

    def commit(self, request_id: str, count: int, source: EntrySource | None = None) -> None:
        """Without a source, the level's own entries become permanent."""
        self.caches[request_id].commit(count, source)

    def source(self, request_id: str) -> EntrySource:
        return self.caches[request_id]

    def tallies(self, request_id: str) -> list[Tally]:
        cache = self.caches[request_id]
        return [
            Tally(
                name=self.name,
                passes=self.passes[request_id],
                tokens=cache.committed,
                cache_class=type(cache).__name__,
            )
        ]

    def caches_of(self, request_id: str) -> list[KVCache]:
        return [self.caches[request_id]]

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
