"""Whose bytes: what must be in fast memory to draft, and what is held in all, by tier, at a request's start and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vcbench.records.schema import RequestLine

Moment = Literal["kv_start", "kv_end"]
MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of one request's caches at one moment.

    full: a full cache of the same tokens, without what lies empty in its pages. codes: codes or kept pairs alone.
    stored: the whole draft cache with its tail of exact new entries; of full KV, its cache. fast: what must be in
    memory to draft: stored, and buffers through which a full copy on a slower tier is read. tiers: everything held, the
    full copy with it, by tier.
    """

    full: int
    codes: int
    stored: int
    fast: int
    tiers: Mapping[str, int]

    @property
    def total(self) -> int:
        """Everything held."""
        return sum(self.tiers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Full KV's bytes over a cell's, summed over `n` requests; None where nothing was recorded.

    codes, stored, fast: as in `Held`. held: everything, on whatever tier; below 1 where more is held than full KV.
    tiers: the bytes behind `held`.
    """

    n: int
    codes: float | None = None
    stored: float | None = None
    fast: float | None = None
    held: float | None = None
    full_bytes: int | None = None
    stored_bytes: int | None = None
    fast_bytes: int | None = None
    held_bytes: int | None = None
    tiers: Mapping[str, int] = field(default_factory=dict)


def held(line: RequestLine, moment: Moment) -> Held | None:
    """The bytes of one request; None where they were not recorded whole."""
    kv = getattr(line, moment)
    if kv is None or not _is_complete(kv):
        return None
    stored = int(kv["stored"])
    # Records of an earlier vcbench hold the full copy in memory only within `resident`.
    copies = kv.get("full_copy") or {MEMORY: int(kv["resident"]) - stored}
    beside = {str(tier): int(count) for tier, count in copies.items()}
    slower = any(count for tier, count in beside.items() if tier != MEMORY)
    return Held(
        full=int(kv["full"]),
        codes=int(kv["codes"]),
        stored=stored,
        fast=stored + (beside.get(MEMORY, 0) if slower else 0),
        tiers=beside | {MEMORY: stored + beside.get(MEMORY, 0)},
    )


def factors(lines: Sequence[RequestLine], moment: Moment) -> Factors:
    """The factors of a cell's requests at their start or end."""
    known = [found for line in lines if (found := held(line, moment)) is not None]
    if not known:
        return Factors(n=0)
    full, codes, stored, fast, total = (
        sum(getattr(each, name) for each in known) for name in ("full", "codes", "stored", "fast", "total")
    )
    return Factors(
        n=len(known),
        codes=_over(full, codes),
        stored=_over(full, stored),
        fast=_over(full, fast),
        held=_over(full, total),
        full_bytes=full,
        stored_bytes=stored,
        fast_bytes=fast,
        held_bytes=total,
        tiers={
            tier: sum(each.tiers.get(tier, 0) for each in known)
            for tier in dict.fromkeys(tier for each in known for tier in sorted(each.tiers))
        },
    )


def _is_complete(kv: Mapping[str, Any]) -> bool:
    return all(type(kv.get(name)) is int for name in ("codes", "stored", "full", "resident"))


def _over(full: int, count: int) -> float | None:
    return full / count if count else None
