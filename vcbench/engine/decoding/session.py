"""Runs one cell over a batch of prefilled requests: full KV, a lossy cache, or draft and verify."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vcbench.config.schema import Arm, DraftLength, Tier
from vcbench.engine.decoding.levels import NOT_FINITE, CacheLevel, Span, choose
from vcbench.engine.decoding.progress import Observer, Progress
from vcbench.engine.decoding.rounds import run_round
from vcbench.engine.decoding.stopping import TextStream
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.disk import DiskStore
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.engine.types import BatchTiming, Generation, KVBytes, Request
from vcbench.errors import NumericError

CODE_PARTS = ("codes", "kept")


class Compress(Protocol):
    """What a cell needs of a compressor."""

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        """A draft cache for a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSetup:
    """How a cell decodes. `compressor` is None for `full` alone; `seed` is the cell's own.

    full_cache: where verification reads the full cache from; on `disk` it lies in `disk_directory`.
    """

    arm: Arm
    compressor: Compress | None = None
    draft_length: DraftLength = 0
    seed: int = 0
    full_cache: Tier = "memory"
    disk_directory: Path | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A request and the snapshot of its prompt, from which every cell starts."""

    request: Request
    prefill: Prefill


OnEnd = Callable[[Generation], None]
StreamFactory = Callable[[], TextStream]


def _verifier(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    return CacheLevel(decoder, caches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a cell is put together from; the lossless gate replaces parts for its controls and its injected faults."""

    progress: Callable[[Request, StreamFactory | None, Observer | None], Progress] = Progress
    drafter: Callable[[Decoder, Mapping[str, KVCache]], CacheLevel] = CacheLevel
    verifier: Callable[[Decoder, Mapping[str, KVCache], CacheLevel], CacheLevel] = _verifier


PARTS = Parts()


class RunCell(Protocol):
    """How a runner calls `run_cell`, or what stands in for it."""

    def __call__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        batch: Sequence[Prefilled],
        *,
        on_end: OnEnd,
        stream: StreamFactory | None = None,
        observe: Observer | None = None,
    ) -> BatchTiming:
        """Decodes a batch to its end."""


def run_cell(
    decoder: Decoder,
    setup: CellSetup,
    batch: Sequence[Prefilled],
    *,
    on_end: OnEnd,
    stream: StreamFactory | None = None,
    observe: Observer | None = None,
    parts: Parts = PARTS,
) -> BatchTiming:
    """Decodes a batch to its end and calls `on_end` with each generation as it ends. Snapshots are left as found.

    `observe` is told of every commit.
    """
    progress = {item.request.id: parts.progress(item.request, stream, observe) for item in batch}
    return _CellRun(decoder, setup, batch, on_end, progress, parts).run()


class _CellRun:
    """The state of one batch in one cell."""

    def __init__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        batch: Sequence[Prefilled],
        on_end: OnEnd,
        progress: Mapping[str, Progress],
        parts: Parts,
    ) -> None:
        self.decoder, self.setup, self.on_end, self.parts = decoder, setup, on_end, parts
        self.batch = {item.request.id: item for item in batch}
        self.progress = progress
        self.timing = BatchTiming()
        self.reported: set[str] = set()
        self.started = 0.0

    def run(self) -> BatchTiming:
        started = time.perf_counter()
        self.drafts = self._compress()
        self.drafter = self.parts.drafter(self.decoder, self.drafts)
        compressed = time.perf_counter()
        self.full_caches = {key: self._on_tier(item) for key, item in self.batch.items()}
        self.full = self.parts.verifier(self.decoder, self.full_caches, self.drafter)
        for key, draft in self.drafts.items():
            if draft.needs_queries:
                self.full.caches[key].queries = QueryLog()
        self.kv_start = {key: self._bytes(key) for key in self.batch}
        self.started = time.perf_counter()
        self.timing.compress_s = compressed - started
        self.timing.offload_s = self.started - compressed
        self._first_tokens()
        while active := [progress for progress in self.progress.values() if not progress.finished]:
            self._step(active)
            self._report_ended()
        self.timing.decode_s = time.perf_counter() - self.started
        for item in self.batch.values():
            item.prefill.cache.rewind(len(item.request.prompt_ids))
        return self.timing

    def _compress(self) -> dict[str, KVCache]:
        compressor = self.setup.compressor
        if compressor is None:
            return {}
        seed = self.setup.seed
        return {key: compressor.compress(item.prefill, seed=seed_of(seed, key)) for key, item in self.batch.items()}

    def _on_tier(self, item: Prefilled) -> FullCache:
        """The snapshot itself, or a copy of it on another tier with room for the whole answer."""
        snapshot = item.prefill.cache
        if self.setup.full_cache == "memory":
            return snapshot
        room = snapshot.tokens + item.request.max_tokens
        return snapshot.moved_to(DiskStore(snapshot.shape, self.setup.disk_directory, room))

    def _first_tokens(self) -> None:
        """The first token comes from the prefill's logits, the same for every cell."""
        for key, progress in self.progress.items():
            logits = self.batch[key].prefill.first_logits[None]
            best = self.decoder.rows.arg_max(logits)
            (choice,) = choose(Span(progress), logits, best)
            if choice == NOT_FINITE:
                progress.fail(NumericError("logits are not finite at step 0, in the prefill"))
            else:
                progress.commit([choice], logits)
        self._report_ended()

    def _step(self, active: Sequence[Progress]) -> None:
        if self.setup.arm == "vericache":
            vocabulary = self.decoder.architecture.vocab_size
            run_round(self.drafter, self.full, active, self.setup.draft_length, vocabulary, self.timing)
        else:
            step_once(self.full if self.setup.arm == "full" else self.drafter, active)
            self.timing.steps += 1

    def _report_ended(self) -> None:
        for key, progress in self.progress.items():
            if progress.finished and key not in self.reported:
                self.reported.add(key)
                self.on_end(self._generation(key, progress))

    def _generation(self, key: str, progress: Progress) -> Generation:
        used = self.drafts.get(key) or self.full_caches[key]
        return Generation(
            request_id=key,
            token_ids=progress.token_ids,
            finish_reason=progress.finish_reason or "error",
            rounds=progress.rounds,
            kv_start=self.kv_start[key],
            kv_end=self._bytes(key),
            cache_classes={type(used).__name__: self.decoder.shape.n_layers},
            logits_sha256=progress.logits_sha256(),
            error=progress.error,
            decode_s=time.perf_counter() - self.started,
        )

    def _bytes(self, key: str) -> KVBytes:
        """What this cell holds for a request; a lossy server has dropped the full cache, so there it does not count."""
        full, draft = self.full_caches[key], self.drafts.get(key)
        held = full.nbytes() if draft is None else draft.nbytes()
        stored = sum(held.values())
        beside = full.tiers() if self.setup.arm == "vericache" else {}
        tokens = full.tokens if draft is None else draft.tokens
        return KVBytes(
            codes=sum(held.get(part, 0) for part in CODE_PARTS) or stored,
            stored=stored,
            full=tokens * self.decoder.shape.token_bytes(),
            resident=stored + beside.get("memory", 0),
            parts=held,
            full_copy=beside,
        )


def seed_of(seed: int, request_id: str) -> int:
    """A request's own seed, the same in every cell and batch."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{request_id}".encode()).digest()[:8], "big") >> 1


def step_once(level: CacheLevel, active: Sequence[Progress]) -> None:
    """One token for every active request, decoded one by one."""
    scores = level.score([Span(progress) for progress in active])
    for progress in active:
        key = progress.request.id
        if scores[key].choices[0] == NOT_FINITE:
            where = level.locate_fault(key, [progress.last])
            progress.fail(NumericError(f"logits are not finite at step {len(progress.token_ids)}, first in {where}"))
            continue
        progress.commit(scores[key].choices, scores[key].logits)
        level.commit(key, 1, None)
