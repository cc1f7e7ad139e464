"""An engine with one of `vcbench.lossless.faults` built in; the full-KV and lossy arms stay sound."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from vcbench.compressors.base import Compressor, prefill_for
from vcbench.config.schema import Arm
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.decoding.levels import CacheLevel, Scores, Span
from vcbench.engine.decoding.progress import Observer, Progress
from vcbench.engine.decoding.session import (
    PARTS,
    CellSetup,
    Compress,
    OnEnd,
    Parts,
    Prefilled,
    StreamFactory,
    run_cell,
)
from vcbench.engine.kv.cache import EntryCache, FullCache, KVCache
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.types import BatchTiming, FinishReason, Generation
from vcbench.lossless.faults import find_fault

NEVER = 1 << 30
ANOTHER_MODEL = 20260517


class Engine:
    """`run_cell` with a fault in its VeriCache cells. `parts`: what those are put together from, the fault included."""

    def __init__(self, fault: str | None = None, parts: Parts | None = None) -> None:
        """`parts` replace those of the fault, in every arm."""
        if fault is not None:
            find_fault(fault)
        self.fault, self._given = fault, parts

    def parts(self, arm: Arm) -> Parts:
        """What the cells of an arm are put together from."""
        if self._given is not None:
            return self._given
        return FAULTY_PARTS.get(self.fault or "", PARTS) if arm == "vericache" else PARTS

    def with_parts(self, parts: Parts) -> Engine:
        """The same engine with its cells put together from these."""
        return Engine(self.fault, parts)

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
        """Decodes a batch to its end, as `run_cell` does."""
        if setup.arm != "vericache":
            parts = self.parts(setup.arm)
            return run_cell(decoder, setup, batch, on_end=on_end, stream=stream, observe=observe, parts=parts)
        last = batch[-1].request.id
        match self.fault:
            case "residual_never_quantised" | "cache_silently_replaced" if setup.compressor is not None:
                swap = _never_quantised if self.fault == "residual_never_quantised" else _ordinary
                setup = replace(setup, compressor=_Swapped(setup.compressor, swap))
            case "wrong_model_records":
                decoder = another_model(decoder)
                batch = [_prefilled_by(decoder, item, setup.compressor) for item in batch]
        dropped = self.fault == "drop_last_request"

        def report(generation: Generation) -> None:
            if not (dropped and generation.request_id == last):
                on_end(generation)

        parts = self.parts(setup.arm)
        return run_cell(decoder, setup, batch, on_end=report, stream=stream, observe=observe, parts=parts)


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
    """A full cache that takes verified entries, as a draft cache does."""

    def commit(self, count: int, verified: FullCache | None = None) -> None:
        if verified is not None:
            self.store.copy_from(verified.store, self.committed, self.committed, count)
        super().commit(count)


class _KeptPositions(Decoder):
    """Takes the position of a block from how many entries the draft cache keeps."""

    def __init__(self, decoder: Decoder, full: Mapping[str, KVCache], drafts: Mapping[str, KVCache]) -> None:
        self.__dict__.update(decoder.__dict__)
        self._drafts = {id(cache): drafts[key] for key, cache in full.items()}

    def _embed(self, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        x, positions = super()._embed(blocks)
        start = 0
        for block in blocks:
            draft = self._drafts.get(id(block.cache))
            if isinstance(draft, EntryCache):
                positions[start : start + len(block.token_ids)] -= draft.tokens - draft.entries()
            start += len(block.token_ids)
        return x, positions


class _KeepsLastDraft(CacheLevel):
    """Leaves the entry of the first rejected draft in the cache."""

    def commit(self, request_id: str, count: int, verified: FullCache | None) -> None:
        cache = self.caches[request_id]
        rejected = cache.tokens - cache.committed > count
        super().commit(request_id, count + rejected, verified)


class _AcceptsNotFinite(CacheLevel):
    """Is not finite in each request's second block with a draft, and agrees with all of it."""

    def __init__(self, decoder: Decoder, caches: Mapping[str, KVCache]) -> None:
        super().__init__(decoder, caches)
        self._blocks = dict.fromkeys(caches, 0)

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        scores = super().score(spans)
        for span in spans:
            key = span.progress.request.id
            self._blocks[key] += bool(span.drafted)
            if self._blocks[key] == 2 and span.drafted:
                scores[key] = Scores([*span.drafted, 0], torch.full_like(scores[key].logits, float("nan")))
        return scores


class _ReadsCompressed(CacheLevel):
    """Verifies against the draft caches; nothing verified is there to refresh them from."""

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        for span in spans:
            self.caches[span.progress.request.id].roll_back()
        return super().score(spans)

    def commit(self, request_id: str, count: int, verified: FullCache | None) -> None:
        """The drafter commits, to the same cache."""


class _Forgetful(Span):
    """Does not show the drafts to what chooses after them."""

    def output_before(self, row: int) -> list[int]:
        return list(self.progress.token_ids)


class _ForgetsDrafts(CacheLevel):
    """Chooses every token of a round by the output before that round."""

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        return super().score([_Forgetful(span.progress, span.drafted, span.rows) for span in spans])


def _kept_positions(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    return CacheLevel(_KeptPositions(decoder, caches, drafter.caches), caches)


def _keeps_last_draft(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    return _KeepsLastDraft(decoder, caches)


def _accepts_not_finite(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    return _AcceptsNotFinite(decoder, caches)


def _forgets_drafts(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    return _ForgetsDrafts(decoder, caches)


def _reads_compressed(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    return _ReadsCompressed(decoder, drafter.caches)


FAULTY_PARTS: dict[str, Parts] = {
    "position_from_kept_length": Parts(verifier=_kept_positions),
    "no_rollback_of_last_draft": Parts(verifier=_keeps_last_draft),
    "eos_only_checked_at_block_end": Parts(progress=_BlockEnd),
    "cap_before_stop": Parts(progress=_CapFirst),
    "nan_accepts_all": Parts(verifier=_accepts_not_finite),
    "penalty_ignores_same_round": Parts(verifier=_forgets_drafts),
    "compressed_cache_in_verify": Parts(verifier=_reads_compressed),
}


@dataclass(frozen=True, slots=True)
class _Swapped:
    """A compressor whose caches are exchanged for others."""

    inner: Compress
    swap: Callable[[Prefill, KVCache], KVCache]

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        return self.swap(prefill, self.inner.compress(prefill, seed=seed))


def _never_quantised(prefill: Prefill, cache: KVCache) -> KVCache:
    if not isinstance(cache, QuantisedCache):
        return cache
    return QuantisedCache.of_prompt(prefill.cache, replace(cache.scheme, key_flush=NEVER, value_residual=NEVER))


def _ordinary(prefill: Prefill, cache: KVCache) -> KVCache:
    ordinary = OrdinaryCache(prefill.cache.shape)
    ordinary.store.copy_from(prefill.cache.store, 0, 0, prefill.cache.tokens)
    ordinary.tokens = ordinary.committed = prefill.cache.tokens
    return ordinary


def another_model(decoder: Decoder) -> Decoder:
    """A model of the same shape that puts other tokens first."""
    norm = decoder.weights.norm
    drawn = torch.randn(norm.shape, generator=torch.Generator().manual_seed(ANOTHER_MODEL)).to(norm)
    other = copy.copy(decoder)
    other.weights = replace(decoder.weights, norm=norm * (1 + 0.5 * drawn))
    return other


def _prefilled_by(decoder: Decoder, item: Prefilled, compressor: Compress | None) -> Prefilled:
    ids = item.request.prompt_ids
    used = [compressor] if isinstance(compressor, Compressor) else []
    return Prefilled(item.request, prefill_for(used, decoder, ids, chunk=len(ids), instruct=item.prefill.instruct))
