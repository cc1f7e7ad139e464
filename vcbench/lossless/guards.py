"""Whether a cell's method was really at work; equal outputs of a method that did nothing are no evidence."""

from __future__ import annotations

from collections.abc import Sequence

from vcbench.lossless.result import Guard
from vcbench.metrics.acceptance import Acceptance, Rounds, acceptance
from vcbench.metrics.bytes import factors
from vcbench.records.reader import CellInfo
from vcbench.records.schema import RequestLine

FULL_CACHE = "FullCache"
UNCOMPRESSED = "none"
"""The compressor that keeps everything: a control in which every draft must be accepted."""
NOISE = "random"
"""The compressor of random keys and values: a control whose drafts are worthless and whose bytes prove nothing."""


def guards(cell: CellInfo, answered: Sequence[RequestLine], *, bitwise: bool) -> tuple[Guard, ...]:
    """The guards that apply to a cell with a method, from its requests that ended without error."""
    if not answered:
        return ()
    if cell.arm != "vericache":
        return (_cache_class(cell, answered),)
    rounds = acceptance(Rounds.of(answered))
    found = [_cache_class(cell, answered), _proposed(rounds)]
    if cell.compressor != NOISE:
        found.append(_accepted(rounds))
    if cell.compressor == UNCOMPRESSED:
        return (*found, *([_all_accepted(answered)] if bitwise else []))
    if cell.compressor != NOISE:
        found.append(_smaller(answered))
    return tuple(found)


def notes(cell: CellInfo, answered: Sequence[RequestLine]) -> tuple[str, ...]:
    """What weakens a pass without making it worthless."""
    if cell.arm != "vericache" or cell.compressor == UNCOMPRESSED:
        return ()
    judged = Rounds.of(answered).judged()
    if any(drafted for drafted, _ in judged) and all(drafted == accepted for drafted, accepted in judged):
        return ("no draft was ever rejected, so rolling back was never put to the test",)
    return ()


def _cache_class(cell: CellInfo, answered: Sequence[RequestLine]) -> Guard:
    """The class of the cache that drafted is the compressor's own, in every layer of every request."""
    seen = {name for line in answered for name, layers in line.cache_classes.items() if layers > 0}
    silent = [line.request for line in answered if not any(line.cache_classes.values())]
    if silent:
        return Guard(
            name="cache_class", passed=False, detail=f"no cache class was recorded for {', '.join(silent[:3])}"
        )
    listed = ", ".join(sorted(seen))
    if FULL_CACHE in seen and cell.compressor != UNCOMPRESSED:
        detail = f"{listed}: the full cache stood in for compressor {cell.compressor!r}"
        return Guard(name="cache_class", passed=False, detail=detail)
    if cell.cache_class is not None and seen != {cell.cache_class}:
        detail = f"{listed}: compressor {cell.compressor!r} makes a {cell.cache_class}"
        return Guard(name="cache_class", passed=False, detail=detail)
    return Guard(name="cache_class", passed=True, detail=listed)


def _proposed(rounds: Acceptance) -> Guard:
    return Guard(
        name="drafts_proposed", passed=rounds.drafted > 0, detail=f"{rounds.drafted} tokens in {rounds.rounds} rounds"
    )


def _accepted(rounds: Acceptance) -> Guard:
    detail = f"{rounds.accepted} of {rounds.drafted} drafted tokens"
    return Guard(name="drafts_accepted", passed=rounds.accepted > 0, detail=detail)


def _all_accepted(answered: Sequence[RequestLine]) -> Guard:
    judged = Rounds.of(answered).judged()
    rejected = sum(accepted < drafted for drafted, accepted in judged)
    return Guard(
        name="all_accepted",
        passed=rejected == 0,
        detail=f"{rejected} of {len(judged)} rounds reject an uncompressed draft",
    )


def _smaller(answered: Sequence[RequestLine]) -> Guard:
    """All that the draft caches hold is less than the full caches, over the cell's requests at their end."""
    found = factors(answered, "kv_end")
    if found.n < len(answered) or found.stored_bytes is None or found.full_bytes is None:
        return Guard(name="smaller_cache", passed=False, detail="the bytes of a cache were not recorded")
    detail = f"{found.stored_bytes:,} of {found.full_bytes:,} bytes"
    return Guard(name="smaller_cache", passed=found.stored_bytes < found.full_bytes, detail=detail)
