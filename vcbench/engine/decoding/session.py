"""Decodes requests in one cell: full KV, a lossy cache, or draft and verify over any number of levels.

Requests come and go: `Session.admit` takes one in, every `step` advances all that are there, `release` lets one go.
`run_cell` admits what it is given, as many at a time as it may, and steps to the end. What a request gets does not
depend on what else is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from vcbench.config.schema import Arm, DraftLength, DraftWeights, Tier
from vcbench.engine.clock import now
from vcbench.engine.decoding.levels import NOT_FINITE, CacheLevel, Drafter, Prefilled, Span, choose
from vcbench.engine.decoding.ngram import NgramLevel
from vcbench.engine.decoding.progress import Observer, Progress
from vcbench.engine.decoding.rounds import Stack, run_round, step_once
from vcbench.engine.decoding.stopping import TextStream
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.disk import DiskStore
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.engine.model.draft_weights import drafting
from vcbench.engine.types import BatchTiming, Generation, KVBytes, Tally
from vcbench.errors import NumericError

CODE_PARTS = ("codes", "kept")
FULL = "full"


class Compress(Protocol):
    """What a cell needs of a compressor."""

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        """A draft cache for a prompt."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Drafting from the request's own text; see `ngram`."""

    min_match: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSetup:
    """A level below the full cache. draft_length: tokens that it proposes to the level above at a time."""

    drafts_by: Compress | Lookup
    name: str = "draft"
    draft_length: DraftLength = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSetup:
    """How a cell decodes. levels: those that draft, the lowest first; a `lossy` cell decodes with its only one.

    seed: the cell's own. full_cache: where verification reads the full cache from; on `disk` it lies in
    `disk_directory`. draft_weights: what the levels below the full cache read of the model.
    """

    arm: Arm
    levels: tuple[LevelSetup, ...] = ()
    seed: int = 0
    full_cache: Tier = "memory"
    disk_directory: Path | None = None
    draft_weights: DraftWeights = "full"


StreamFactory = Callable[[], TextStream]
OnEnd = Callable[[Generation], None]


@dataclass(frozen=True, slots=True)
class Event:
    """What a step did to a request: the tokens that it committed and, if it has ended, the whole result."""

    request_id: str
    token_ids: list[int]
    generation: Generation | None = None


@dataclass(slots=True)
class Row:
    """A request that has been admitted. admitted_s: the session's decoding time until then; seen: tokens reported.

    compress_s, offload_s: what admitting it took; first_s: decoding time from there to its first token.
    """

    item: Prefilled
    progress: Progress
    admitted_s: float
    compress_s: float = 0.0
    offload_s: float = 0.0
    first_s: float = 0.0
    kv_start: KVBytes | None = None
    seen: int = 0
    reported: bool = False


class Session:
    """One cell at work. `timing` counts what admitting and stepping took since it was last taken."""

    def __init__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        *,
        stream: StreamFactory | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.decoder, self.setup, self.stream, self.observe = decoder, setup, stream, observe
        self.timing = BatchTiming()
        self.drafter = self.make_drafter()
        self.full = self.make_verifier()
        self.rows: dict[str, Row] = {}
        self._decoded_s = 0.0

    def make_drafter(self) -> Drafter | None:
        """All levels below the full cache as one; None where there are none."""
        stack: Drafter | None = None
        rule: DraftLength = 0
        for level in self.setup.levels:
            made = self.make_level(level)
            if stack is None:
                stack = made
            elif isinstance(made, CacheLevel):
                stack = Stack(stack, made, rule)
            else:
                raise ValueError(f"level {level.name} cannot check drafts, so that nothing may lie below it")
            rule = level.draft_length
        return stack

    def make_level(self, level: LevelSetup) -> Drafter:
        """One level below the full cache."""
        source = level.drafts_by
        if isinstance(source, Lookup):
            return NgramLevel(level.name, source.min_match)
        drafter = drafting(self.decoder, self.setup.draft_weights)
        return CacheLevel(level.name, drafter, lambda item: self.compressed(source, item))

    def make_verifier(self) -> CacheLevel:
        """The full cache's level."""
        return CacheLevel(FULL, self.decoder, self.on_tier)

    def make_progress(self, item: Prefilled) -> Progress:
        """The state of a request that has not begun."""
        return Progress(item.request, self.stream, self.observe)

    def compressed(self, compressor: Compress, item: Prefilled) -> KVCache:
        """A level's cache for a request that comes in."""
        return compressor.compress(item.prefill, seed=seed_of(self.setup.seed, item.request.id))

    @property
    def active(self) -> list[str]:
        """Requests that the next step advances."""
        return [key for key, row in self.rows.items() if not row.progress.finished]

    def admit(self, item: Prefilled) -> None:
        """Takes a request in, with caches on all levels; the next step gives its first token.

        Its snapshot is in use until the request is released. Raises ValueError for an id that is there already.
        """
        key = item.request.id
        if key in self.rows:
            raise ValueError(f"request {key} has been admitted already")
        started = self._now()
        if self.drafter is not None:
            self.drafter.admit(item)
        compressed = self._now()
        self.full.admit(item)
        if any(cache.needs_queries for cache in self.drafts(key)):
            self.full.caches[key].queries = QueryLog()
        row = self.rows[key] = Row(item, self.make_progress(item), self._decoded_s)
        row.compress_s, row.offload_s = compressed - started, self._now() - compressed
        self.timing.compress_s += row.compress_s
        self.timing.offload_s += row.offload_s
        row.kv_start = self._bytes(key)

    def step(self) -> list[Event]:
        """Advances every active request by one round, or one token; newcomers get their first token before that."""
        started = self._now()
        self._first_tokens(started)
        active = [row.progress for row in self.rows.values() if not row.progress.finished]
        if active:
            self._advance(active)
            self.timing.steps += 1
            self.timing.row_steps += len(active)
        spent = self._now() - started
        self._decoded_s += spent
        self.timing.decode_s += spent
        return [self.event(row) for row in self.rows.values() if not row.reported]

    def release(self, request_id: str) -> None:
        """Forgets a request, ended or not; its snapshot is as it was."""
        row = self.rows.pop(request_id)
        if self.drafter is not None:
            self.drafter.release(request_id)
        self.full.release(request_id)
        row.item.prefill.cache.rewind(len(row.item.request.prompt_ids))

    def close(self) -> None:
        """Releases every request that is still there."""
        for key in list(self.rows):
            self.release(key)

    def take_timing(self) -> BatchTiming:
        """The timing since it was last taken, which begins anew."""
        taken, self.timing = self.timing, BatchTiming()
        return taken

    def on_tier(self, item: Prefilled) -> FullCache:
        """The snapshot itself, or a copy of it on another tier with room for the whole answer."""
        snapshot = item.prefill.cache
        if self.setup.full_cache == "memory":
            return snapshot
        room = snapshot.tokens + item.request.max_tokens
        return snapshot.moved_to(DiskStore(snapshot.shape, self.setup.disk_directory, room))

    def _now(self) -> float:
        return now(self.decoder.shape.device)

    def _first_tokens(self, started: float) -> None:
        """The first token comes from the prefill's logits, the same for every cell."""
        for row in self.rows.values():
            if row.progress.token_ids or row.progress.finished:
                continue
            logits = row.item.prefill.first_logits[None]
            best = self.decoder.rows.arg_max(logits)
            (choice,) = choose(Span(row.progress), logits, best)
            if choice == NOT_FINITE:
                row.progress.fail(NumericError("logits are not finite at step 0, in the prefill"))
            else:
                row.progress.commit([choice], logits)
            row.first_s = self._decoded_s + self._now() - started - row.admitted_s

    def _advance(self, active: Sequence[Progress]) -> None:
        before = sum(len(progress.token_ids) for progress in active)
        if self.setup.arm == "vericache" and self.drafter is not None:
            run_round(self.drafter, self.full, active, self.setup.levels[-1].draft_length, self.timing)
        elif isinstance(self.drafter, CacheLevel):
            step_once(self.drafter, active)
        else:
            step_once(self.full, active)
        self.timing.tokens += sum(len(progress.token_ids) for progress in active) - before

    def event(self, row: Row) -> Event:
        """What a request has to report since it last did."""
        progress, key = row.progress, row.item.request.id
        tokens = progress.token_ids[row.seen :]
        row.seen, row.reported = len(progress.token_ids), progress.finished
        return Event(key, tokens, self._generation(row) if progress.finished else None)

    def _generation(self, row: Row) -> Generation:
        key, progress = row.item.request.id, row.progress
        used = self.drafts(key)[-1:] or ([] if self.drafter is not None else [self.full_cache(key)])
        return Generation(
            request_id=key,
            token_ids=progress.token_ids,
            finish_reason=progress.finish_reason or "error",
            rounds=progress.rounds,
            levels=self._tallies(row),
            kv_start=row.kv_start,
            kv_end=self._bytes(key),
            cache_classes={type(cache).__name__: self.decoder.shape.n_layers for cache in used},
            logits_sha256=progress.logits_sha256(),
            error=progress.error,
            compress_s=row.compress_s,
            offload_s=row.offload_s,
            first_s=row.first_s,
            decode_s=self._decoded_s - row.admitted_s,
        )

    def _tallies(self, row: Row) -> list[Tally]:
        """Every level's part; the rounds of the level below the full cache are those that were committed."""
        key, verified = row.item.request.id, self.setup.arm == "vericache"
        drafting = self.drafter.tallies(key) if self.drafter is not None else []
        if drafting and verified:
            drafting[-1] = replace(drafting[-1], rounds=tuple(row.progress.rounds))
        return [*drafting, *self.full.tallies(key)]

    def full_cache(self, key: str) -> FullCache:
        """A request's full cache."""
        cache = self.full.caches[key]
        assert isinstance(cache, FullCache)
        return cache

    def drafts(self, key: str) -> list[KVCache]:
        """A request's draft caches, the lowest level's first."""
        return self.drafter.caches_of(key) if self.drafter is not None else []

    def _bytes(self, key: str) -> KVBytes:
        """What this cell holds for a request; a lossy server has dropped the full cache, so there it does not count."""
        full, drafts = self.full_cache(key), self.drafts(key)
        held: dict[str, int] = {}
        for cache in drafts if self.drafter is not None else [full]:
            for part, count in cache.nbytes().items():
                held[part] = held.get(part, 0) + count
        stored = sum(held.values())
        beside = full.tiers() if self.setup.arm == "vericache" else {}
        tokens = drafts[-1].tokens if drafts else full.tokens
        return KVBytes(
            codes=sum(held.get(part, 0) for part in CODE_PARTS) or stored,
            stored=stored,
            full=tokens * self.decoder.shape.token_bytes(),
            resident=stored + beside.get("memory", 0),
            parts=held,
            full_copy=beside,
            reread=full.reread_bytes() if self.setup.arm == "vericache" else 0,
        )


class MakeSession(Protocol):
    """`Session`, or what stands in for it: the lossless gate's controls and injected faults."""

    def __call__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        *,
        stream: StreamFactory | None = None,
        observe: Observer | None = None,
    ) -> Session:
        """A session without requests."""


def decode_cell(
    decoder: Decoder,
    setup: CellSetup,
    batch: Iterable[Prefilled],
    *,
    stream: StreamFactory | None = None,
    observe: Observer | None = None,
    session: MakeSession = Session,
) -> Generator[Generation, None, BatchTiming]:
    """Decodes a batch to its end and gives each generation as it ends. Snapshots are left as found.

    `observe` is told of every commit.
    """
    opened = session(decoder, setup, stream=stream, observe=observe)
    with closing(opened):
        for item in batch:
            opened.admit(item)
        while opened.active:
            for event in opened.step():
                if event.generation is not None:
                    yield event.generation
        return opened.take_timing()


def refill(opened: Session, waiting: Iterator[Prefilled], size: int) -> Generator[Generation, None, None]:
    """Decodes a queue in an open session, at most `size` requests at a time, and gives each generation as it ends.

    The next request is taken from the queue, and its prompt thereby prefilled if the queue is lazy, when there is room
    for it: no more than `size` snapshots are ever alive. What a request gets is what it gets alone.
    """
    while True:
        while len(opened.active) < size and (item := next(waiting, None)) is not None:
            opened.admit(item)
        if not opened.active:
            return
        for event in opened.step():
            if event.generation is not None:
                opened.release(event.request_id)
                yield event.generation


def run_cell(
    decoder: Decoder,
    setup: CellSetup,
    batch: Iterable[Prefilled],
    *,
    on_end: OnEnd,
    stream: StreamFactory | None = None,
    observe: Observer | None = None,
    session: MakeSession = Session,
) -> BatchTiming:
    """`decode_cell` to its end at once; `on_end` is called with each generation."""
    decoding = decode_cell(decoder, setup, batch, stream=stream, observe=observe, session=session)
    while True:
        try:
            on_end(next(decoding))
        except StopIteration as end:
            timing: BatchTiming = end.value
            return timing


def seed_of(seed: int, request_id: str) -> int:
    """A request's own seed, the same in every cell and batch."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{request_id}".encode()).digest()[:8], "big") >> 1
