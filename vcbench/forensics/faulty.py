"""Sessions with one of `vcbench.lossless.faults` built in; the full-KV and lossy arms stay sound."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from vcbench.backends.bundled.drafts import SharedCompressor
from vcbench.compressors.base import Compressor, prefill_for
from vcbench.config.schema import Arm
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.decoding.levels import CacheLevel, Drafter, Prefilled, Scores, Span
from vcbench.engine.decoding.ngram import NgramLevel
from vcbench.engine.decoding.progress import Observer, Progress
from vcbench.engine.decoding.session import CellSetup, Compress, Event, LevelSetup, Lookup, Session, StreamFactory
from vcbench.engine.kv.cache import EntryCache, EntrySource, FullCache, KVCache
from vcbench.engine.kv.make import make_store
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.types import FinishReason
from vcbench.lossless.faults import find_fault

NEVER = 1 << 30
ANOTHER_MODEL = 20260517


class FaultySession:
    """Makes sessions of which those that draft and verify have a fault."""

    def __init__(self, fault: str | None = None) -> None:
        if fault is not None:
            find_fault(fault)
        self.fault = fault

    def kind(self, arm: Arm) -> type[Session]:
        """What the cells of an arm are decoded by."""
        return SESSIONS[self.fault] if self.fault is not None and arm == "vericache" else Session

    def __call__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        *,
        stream: StreamFactory | None = None,
        observe: Observer | None = None,
    ) -> Session:
        """A session without requests."""
        return self.kind(setup.arm)(decoder, setup, stream=stream, observe=observe)


class _BlockEnd(Progress):
    """Looks for a stop at the end of a block alone."""

    def _append(self, token_ids: Sequence[int]) -> int:
        count, reason = 0, cast(FinishReason | None, None)
        while count < len(token_ids) and reason != "length":
            self.token_ids.append(token_ids[count])
            reason = self._stop.push(token_ids[count])
            count += 1
        self.finish_reason = reason
        return count


class _CapFirst(Progress):
    """Cuts a block at the cap and calls that the end, whatever stop is in it."""

    def _append(self, token_ids: Sequence[int]) -> int:
        if len(token_ids) < self.remaining:
            return super()._append(token_ids)
        count = self.remaining
        self.token_ids += token_ids[:count]
        self.finish_reason = "length"
        return count


class OrdinaryCache(FullCache):
    """A full cache in place of a compressed one."""


class _KeptPositions(Decoder):
    """Takes the position of a block from how many entries the draft cache keeps."""

    def __init__(self, decoder: Decoder, session: Session) -> None:
        self.__dict__.update(decoder.__dict__)
        self._session = session

    def _embed(self, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        x, positions = super()._embed(blocks)
        start = 0
        for block in blocks:
            draft = self._draft(block.cache)
            if isinstance(draft, EntryCache):
                positions[start : start + len(block.token_ids)] -= draft.tokens - draft.entries()
            start += len(block.token_ids)
        return x, positions

    def _draft(self, full: KVCache) -> KVCache | None:
        keys = [key for key, cache in self._session.full.caches.items() if cache is full]
        drafts = self._session.drafts(keys[0]) if keys else []
        return drafts[-1] if drafts else None


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A source passing for one that has committed so many tokens, whatever it has."""

    cache: EntrySource
    committed: int

    @property
    def queries(self) -> QueryLog | None:
        return self.cache.queries

    def uncommitted(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        return self.cache.uncommitted(layer, count)


class _KeepsLastDraft(CacheLevel):
    """Leaves the entry of the first rejected draft in the cache."""

    def admit(self, item: Prefilled) -> None:
        super().admit(item)
        self._committed = {**getattr(self, "_committed", {}), item.request.id: self.caches[item.request.id].committed}

    def commit(self, request_id: str, count: int, source: EntrySource | None = None) -> None:
        cache = self.caches[request_id]
        rejected = cache.tokens - cache.committed > count
        super().commit(request_id, count + rejected, source)
        self._committed[request_id] += count

    def source(self, request_id: str) -> EntrySource:
        return _Ahead(self.caches[request_id], self._committed[request_id])


class _CommitsOneMore(CacheLevel):
    """Keeps the first rejected draft as the level above commits what was right, and says nothing of it."""

    def admit(self, item: Prefilled) -> None:
        super().admit(item)
        self._more = {**getattr(self, "_more", {}), item.request.id: 0}

    def refresh(self, request_id: str, count: int, source: EntrySource) -> None:
        super().refresh(request_id, count, _Ahead(source, self.caches[request_id].committed))

    def commit(self, request_id: str, count: int, source: EntrySource | None = None) -> None:
        assert isinstance(source, KVCache)
        rejected = source.tokens - source.committed > count
        super().commit(request_id, count + rejected, _Ahead(source, self.caches[request_id].committed))
        self._more[request_id] += rejected

    def source(self, request_id: str) -> EntrySource:
        cache = self.caches[request_id]
        return _Ahead(cache, cache.committed - self._more[request_id])


class _SilentLevel(CacheLevel):
    """Proposes nothing."""

    def propose(self, spans: Sequence[Span], wanted: Mapping[str, int]) -> dict[str, list[int]]:
        return {span.key: [] for span in spans}


class _AcceptsNotFinite(CacheLevel):
    """Is not finite in each request's second block with a draft, and agrees with all of it."""

    def admit(self, item: Prefilled) -> None:
        super().admit(item)
        self._blocks = {**getattr(self, "_blocks", {}), item.request.id: 0}

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        scores = super().score(spans)
        for span in spans:
            self._blocks[span.key] += bool(span.drafted)
            if self._blocks[span.key] == 2 and span.drafted:
                not_finite = torch.full_like(scores[span.key].logits, float("nan"))
                scores[span.key] = Scores([*span.drafted, 0], not_finite)
        return scores


class _ReadsCompressed(CacheLevel):
    """Verifies against the draft caches; nothing verified is there to refresh them from."""

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        for span in spans:
            self.caches[span.key].roll_back()
        return super().score(spans)

    def commit(self, request_id: str, count: int, source: EntrySource | None = None) -> None:
        """The drafter commits, to the same cache."""


class _Forgetful(Span):
    """Does not show the drafts to what chooses after them."""

    def output_before(self, row: int) -> list[int]:
        return list(self.progress.token_ids)


class _ForgetsDrafts(CacheLevel):
    """Chooses every token of a round by the output before that round."""

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        return super().score([_Forgetful(span.progress, span.drafted, span.rows) for span in spans])


class _ByDraftIndex(Span):
    """Numbers the places of a round from its own beginning."""

    def position(self, row: int) -> int:
        return len(self.drafted) + 1 - self.rows + row


class _NoiseByDraftIndex(CacheLevel):
    """Draws each token with the noise of its place in the block."""

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        return super().score([_ByDraftIndex(span.progress, span.drafted, span.rows) for span in spans])


class _Remembering(Span):
    """Shows the whole draft to what chooses at each of its places."""

    def output_before(self, row: int) -> list[int]:
        return [*self.progress.token_ids, *self.drafted]


class _SeesRejectedDrafts(CacheLevel):
    """Chooses every token of a round by all that was drafted there."""

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        return super().score([_Remembering(span.progress, span.drafted, span.rows) for span in spans])


class _ShiftedPositions(Decoder):
    """Takes every position for the next one."""

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)

    def _embed(self, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        x, positions = super()._embed(blocks)
        return x, positions + 1


@dataclass(frozen=True, slots=True)
class _OneBefore:
    """A source whose entries are each that of the token before; `last` holds the final ones of the commit before."""

    cache: EntrySource
    last: dict[int, tuple[Tensor, Tensor]]

    @property
    def committed(self) -> int:
        return self.cache.committed

    @property
    def queries(self) -> QueryLog | None:
        return self.cache.queries

    def uncommitted(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        k, v = self.cache.uncommitted(layer, count)
        if not count:
            return k, v
        before = self.last.get(layer, (k[:, :1], v[:, :1]))
        self.last[layer] = k[:, -1:].clone(), v[:, -1:].clone()
        return torch.cat([before[0], k[:, :-1]], dim=1), torch.cat([before[1], v[:, :-1]], dim=1)


class _KeepsStaleEntries(CacheLevel):
    """Takes the entries of verified tokens one place late."""

    def admit(self, item: Prefilled) -> None:
        super().admit(item)
        self._last: dict[str, dict[int, tuple[Tensor, Tensor]]] = getattr(self, "_last", {})
        self._last[item.request.id] = {}

    def commit(self, request_id: str, count: int, source: EntrySource | None = None) -> None:
        late = None if source is None else _OneBefore(source, self._last[request_id])
        super().commit(request_id, count, late)


class _PositionFromKeptLength(Session):
    def make_verifier(self) -> CacheLevel:
        return CacheLevel("full", _KeptPositions(self.decoder, self), self.on_tier)


class _NoRollbackOfLastDraft(Session):
    def make_verifier(self) -> CacheLevel:
        return _KeepsLastDraft("full", self.decoder, self.on_tier)


class _NanAcceptsAll(Session):
    def make_verifier(self) -> CacheLevel:
        return _AcceptsNotFinite("full", self.decoder, self.on_tier)


class _PenaltyIgnoresSameRound(Session):
    def make_verifier(self) -> CacheLevel:
        return _ForgetsDrafts("full", self.decoder, self.on_tier)


class _CompressedCacheInVerify(Session):
    def make_verifier(self) -> CacheLevel:
        return _ReadsCompressed("full", self.decoder, self._draft_of)

    def full_cache(self, request_id: str) -> FullCache:
        return self.rows[request_id].item.prefill.cache

    def _draft_of(self, item: Prefilled) -> KVCache:
        return (self.drafts(item.request.id) or [self.on_tier(item)])[-1]


class _NoiseByDraftIndexSession(Session):
    def make_verifier(self) -> CacheLevel:
        return _NoiseByDraftIndex("full", self.decoder, self.on_tier)


class _PenaltySeesRejectedDrafts(Session):
    def make_verifier(self) -> CacheLevel:
        return _SeesRejectedDrafts("full", self.decoder, self.on_tier)


class _DraftPositionsShifted(Session):
    def make_level(self, level: LevelSetup) -> Drafter:
        made = super().make_level(level)
        return (
            made
            if not isinstance(made, CacheLevel)
            else CacheLevel(made.name, _ShiftedPositions(self.decoder), made.make)
        )


class _StaleDraftEntries(Session):
    def make_level(self, level: LevelSetup) -> Drafter:
        made = super().make_level(level)
        return made if not isinstance(made, CacheLevel) else _KeepsStaleEntries(made.name, self.decoder, made.make)


class _EosOnlyCheckedAtBlockEnd(Session):
    def make_progress(self, item: Prefilled) -> Progress:
        return _BlockEnd(item.request, self.stream, self.observe)


class _CapBeforeStop(Session):
    def make_progress(self, item: Prefilled) -> Progress:
        return _CapFirst(item.request, self.stream, self.observe)


class _DropLastRequest(Session):
    """Says nothing of the request that came last when decoding began."""

    _last: str | None = None

    def step(self) -> list[Event]:
        self._last = self._last or next(reversed(self.rows), None)
        return [event for event in super().step() if event.request_id != self._last]


class _WrongModelRecords(Session):
    def __init__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        *,
        stream: StreamFactory | None = None,
        observe: Observer | None = None,
    ) -> None:
        super().__init__(another_model(decoder), setup, stream=stream, observe=observe)

    def admit(self, item: Prefilled) -> None:
        ids, instruct = item.request.prompt_ids, item.prefill.instruct
        used = [
            level.drafts_by for level in self.setup.levels if isinstance(level.drafts_by, Compressor | SharedCompressor)
        ]
        prefill = prefill_for(used, self.decoder, ids, chunk=len(ids), instruct=instruct)
        super().admit(Prefilled(item.request, prefill))


class _MiddleLevelKeepsOneTooMany(Session):
    def make_level(self, level: LevelSetup) -> Drafter:
        compressor = level.drafts_by
        if isinstance(compressor, Lookup) or level is self.setup.levels[0]:
            return super().make_level(level)
        return _CommitsOneMore(level.name, self.decoder, lambda item: self.compressed(compressor, item))


class _LowestLevelNeverDrafts(Session):
    def make_level(self, level: LevelSetup) -> Drafter:
        compressor = level.drafts_by
        if level is not self.setup.levels[0]:
            return super().make_level(level)
        if isinstance(compressor, Lookup):
            return NgramLevel(level.name, NEVER)
        return _SilentLevel(level.name, self.decoder, lambda item: self.compressed(compressor, item))


class _RequestReleasedTooEarly(Session):
    """Its slot is wanted: the next one in line goes with each request that ends."""

    def step(self) -> list[Event]:
        events = super().step()
        for _ in [event for event in events if event.generation is not None]:
            for key in self.active[:1]:
                self.rows[key].progress.finish_reason = "length"
                events.append(self.event(self.rows[key]))
        return events


class _AdmittedWithAnothersEntries(Session):
    _before: FullCache | None = None

    def on_tier(self, item: Prefilled) -> FullCache:
        cache, before = super().on_tier(item), self._before
        self._before = item.prefill.cache
        if before is None:
            return cache
        mixed = cache.moved_to(make_store(cache.shape))
        mixed.store.copy_from(before.store, 0, 0, min(before.committed, mixed.committed) // 2)
        return mixed


class _ResidualNeverQuantised(Session):
    def compressed(self, compressor: Compress, item: Prefilled) -> KVCache:
        return _never_quantised(item.prefill, super().compressed(compressor, item))


class _CacheSilentlyReplaced(Session):
    def compressed(self, compressor: Compress, item: Prefilled) -> KVCache:
        ordinary = OrdinaryCache(item.prefill.cache.shape)
        ordinary.store.copy_from(item.prefill.cache.store, 0, 0, item.prefill.cache.tokens)
        ordinary.tokens = ordinary.committed = item.prefill.cache.tokens
        return ordinary


def _never_quantised(prefill: Prefill, cache: KVCache) -> KVCache:
    if not isinstance(cache, QuantisedCache):
        return cache
    return QuantisedCache.of_prompt(prefill.cache, replace(cache.scheme, key_flush=NEVER, value_residual=NEVER))


def another_model(decoder: Decoder) -> Decoder:
    """A model of the same shape that puts other tokens first."""
    norm = decoder.weights.norm
    drawn = torch.randn(norm.shape, generator=torch.Generator().manual_seed(ANOTHER_MODEL)).to(norm)
    other = copy.copy(decoder)
    other.weights = replace(decoder.weights, norm=norm * (1 + 0.5 * drawn))
    return other


SESSIONS: dict[str, type[Session]] = {
    "position_from_kept_length": _PositionFromKeptLength,
    "no_rollback_of_last_draft": _NoRollbackOfLastDraft,
    "eos_only_checked_at_block_end": _EosOnlyCheckedAtBlockEnd,
    "cap_before_stop": _CapBeforeStop,
    "nan_accepts_all": _NanAcceptsAll,
    "penalty_ignores_same_round": _PenaltyIgnoresSameRound,
    "compressed_cache_in_verify": _CompressedCacheInVerify,
    "drop_last_request": _DropLastRequest,
    "wrong_model_records": _WrongModelRecords,
    "middle_level_keeps_one_too_many": _MiddleLevelKeepsOneTooMany,
    "lowest_level_never_drafts": _LowestLevelNeverDrafts,
    "request_released_too_early": _RequestReleasedTooEarly,
    "admitted_with_anothers_entries": _AdmittedWithAnothersEntries,
    "noise_by_draft_index": _NoiseByDraftIndexSession,
    "penalty_sees_rejected_drafts": _PenaltySeesRejectedDrafts,
    "draft_positions_shifted": _DraftPositionsShifted,
    "stale_draft_entries": _StaleDraftEntries,
    "residual_never_quantised": _ResidualNeverQuantised,
    "cache_silently_replaced": _CacheSilentlyReplaced,
}
"""What carries out each fault."""
