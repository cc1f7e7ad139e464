"""Whether a cell's method was really at work; equal outputs of a method that did nothing are no evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from vcbench.lossless.answers import Arm
from vcbench.lossless.result import Guard
from vcbench.metrics.acceptance import Acceptance, Rounds, acceptance
from vcbench.metrics.bytes import factors
from vcbench.metrics.divergence import kl_topk
from vcbench.metrics.levels import level_figures
from vcbench.metrics.text import first_divergence
from vcbench.records.reader import CellInfo
from vcbench.records.schema import CHECKED_SINCE, RequestLine

FULL_CACHE = "FullCache"
NO_ROWS = ("", hashlib.sha256().hexdigest())
"""What is in place of a hash where no logits went into it."""
UNCOMPRESSED = "none"
"""The compressor that keeps everything: a control in which every draft must be accepted."""
NOISE = "random"
"""The compressor of random keys and values: a control whose drafts are worthless and whose bytes prove nothing."""


def guards(
    cell: CellInfo,
    answered: Sequence[RequestLine],
    *,
    bitwise: bool,
    reference: Sequence[RequestLine] | None = (),
    caches: bool = True,
) -> tuple[Guard, ...]:
    """The guards that apply to a cell with a method, from its requests that ended without error.

    reference: full KV's; None where the run's backend hashes no logits. caches: whether the run's backend says what its
    caches are; what is recorded of them is judged in any case.
    """
    if not answered:
        return ()
    caches = caches or any(line.cache_classes or line.kv_end for line in answered)
    if cell.arm != "vericache":
        return (_cache_class(cell, answered),) if caches else ()
    rounds = acceptance(Rounds.of(answered))
    compressed = caches and (bool(cell.compressor) or not cell.levels)
    found = [*([_cache_class(cell, answered)] if compressed else []), _proposed(rounds)]
    if bitwise and reference is not None:
        found.append(_hashes([("full KV", reference), (cell.label, answered)]))
    if len(cell.levels) > 1 and caches:
        found.append(_levels(cell, answered))
    if cell.full_cache != "memory" and caches:
        found += [_tier(cell, answered), _read_back(cell, answered)]
    if cell.compressor != NOISE:
        found.append(_accepted(rounds))
    if cell.compressor == UNCOMPRESSED:
        return (*found, *([_all_accepted(answered)] if bitwise else []))
    found.append(_rejected(Rounds.of(answered).judged()))
    if cell.compressor != NOISE and compressed:
        found.append(_smaller(answered))
    return tuple(found)


def outputs_guards(reference: Arm, method: Arm) -> tuple[Guard, ...]:
    """The guards that outputs of other engines allow: for counters and cache states that they state."""
    found = []
    drafted = sum(sum(answer.drafted) for answer in method.answers.values())
    if any(answer.drafted for answer in method.answers.values()):
        accepted = sum(sum(answer.accepted) for answer in method.answers.values())
        found += [
            Guard(name="drafts_proposed", passed=drafted > 0, detail=f"{drafted} tokens"),
            Guard(name="drafts_accepted", passed=accepted > 0, detail=f"{accepted} of {drafted} drafted tokens"),
            Guard(name="drafts_rejected", passed=accepted < drafted, detail=f"{drafted - accepted} of {drafted}"),
        ]
    return (*found, *(guard for arm in (reference, method) if (guard := _cache_state(arm)) is not None))


def outputs_notes(reference: Arm, method: Arm) -> tuple[str, ...]:
    """What weakens a pass of outputs of other engines, and how far their stated log-probabilities are apart."""
    bound = _least_kl(reference, method)
    if outputs_guards(reference, method):
        return bound
    return ("the records carry no sign that the method was at work (drafted, accepted, cached_tokens)", *bound)


def _least_kl(reference: Arm, method: Arm) -> tuple[str, ...]:
    """KL from the log-probabilities that both arms state, over the steps that both came to by the same tokens."""
    found = []
    for name, ours in method.answers.items():
        full = reference.answers.get(name)
        if full is None or full.logprobs is None or ours.logprobs is None:
            continue
        fork = first_divergence(full.token_ids, ours.token_ids)
        same = zip(full.logprobs, ours.logprobs, strict=False)
        found += [kl_topk(p, q) for step, (p, q) in enumerate(same) if fork is None or step <= fork]
    if not found:
        return ()
    mean = sum(found) / len(found)
    return (
        f"kl_topk: at least {mean:.3g} nats a step, at most {max(found):.3g} of these in one "
        f"(lower bounds from the stated log-probabilities, {len(found)} steps)",
    )


def _cache_state(arm: Arm) -> Guard | None:
    """Cold arms hit nothing, warm arms something; None where the arm does not say which it is."""
    if arm.cache is None:
        return None
    known = [answer.cached_tokens for answer in arm.answers.values() if answer.cached_tokens is not None]
    hits, name = sum(known), f"{arm.cache}_cache"
    if len(known) < len(arm.answers):
        return Guard(name=name, passed=False, detail=f"{arm.name} does not state cached_tokens of every request")
    passed = hits == 0 if arm.cache == "cold" else hits > 0
    return Guard(name=name, passed=passed, detail=f"{arm.name}: {hits} cached tokens")


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


def _hashes(arms: Sequence[tuple[str, Sequence[RequestLine]]]) -> Guard:
    """Every answer has the hash of its logits, and other prompts another one: equal constants are no evidence.

    Records of before schema 3 may lack hashes.
    """
    name, count = "logits_hashed", 0
    for arm, lines in arms:
        prompts: dict[str, str] = {}
        for line in lines:
            if line.logits_sha256 in NO_ROWS:
                if line.schema >= CHECKED_SINCE or line.logits_sha256:
                    return Guard(name=name, passed=False, detail=f"{arm}, {line.request}: no logits were hashed")
                continue
            count += 1
            if prompts.setdefault(line.logits_sha256, line.prompt_sha256) != line.prompt_sha256:
                detail = f"{arm}, {line.request}: the hash of its logits is that of another prompt's"
                return Guard(name=name, passed=False, detail=detail)
    return Guard(name=name, passed=True, detail=f"{count} answers, each prompt with its own")


def _levels(cell: CellInfo, answered: Sequence[RequestLine]) -> Guard:
    """Every level drafted, and on caches of its own method's class."""
    figures = level_figures(answered)
    if [each.name for each in figures[:-1]] != [level["name"] for level in cell.levels]:
        return Guard(name="levels_drafted", passed=False, detail="what each level did was not recorded")
    wrong = [f"{each.name} never drafted" for each in figures[:-1] if not each.drafted]
    for number, level in enumerate(cell.levels):
        seen = {str(line.levels[number]["cache_class"]) for line in answered}
        if seen != {str(level.get("cache_class"))}:
            wrong.append(f"{level['name']} drafted on {', '.join(sorted(seen))}, not {level.get('cache_class')}")
    found = "; ".join(f"{each.name}: {each.accepted} of {each.drafted} drafted tokens" for each in figures[:-1])
    return Guard(name="levels_drafted", passed=not wrong, detail="; ".join(wrong) or found)


def _tier(cell: CellInfo, answered: Sequence[RequestLine]) -> Guard:
    """The full cache lay on the tier that was asked for, all of it and in every request."""
    copies = [(line.kv_end or {}).get("full_copy") or {} for line in answered]
    held, full = (sum(row.get(key) or 0 for row in rows) for rows, key in (
        (copies, cell.full_cache), ([line.kv_end or {} for line in answered], "full"),
    ))  # fmt: skip
    away = [line.request for line, copy in zip(answered, copies, strict=True) if not copy.get(cell.full_cache)]
    detail = f"{held:,} bytes on {cell.full_cache} of full caches of {full:,}"
    if away:
        detail = f"nothing of {', '.join(away[:3])} lay on {cell.full_cache}"
    return Guard(name="full_cache_tier", passed=not away and held >= full, detail=detail)


def _read_back(cell: CellInfo, answered: Sequence[RequestLine]) -> Guard:
    """Verification read the full cache back from its tier; what never left the buffers shows nothing of the tier.

    Records of before schema 3 do not say.
    """
    told = [line for line in answered if line.schema >= CHECKED_SINCE and line.committed]
    read = {line.request: (line.kv_end or {}).get("reread") or 0 for line in told}
    never = [request for request, count in read.items() if not count]
    detail = f"{sum(read.values()):,} bytes were read back from {cell.full_cache}"
    if never:
        detail = f"nothing of {', '.join(never[:3])} was read back from {cell.full_cache}: it stayed in its buffers"
    return Guard(name="full_cache_read_back", passed=not never, detail=detail)


def _proposed(rounds: Acceptance) -> Guard:
    return Guard(
        name="drafts_proposed", passed=rounds.drafted > 0, detail=f"{rounds.drafted} tokens in {rounds.rounds} rounds"
    )


def _accepted(rounds: Acceptance) -> Guard:
    detail = f"{rounds.accepted} of {rounds.drafted} drafted tokens"
    return Guard(name="drafts_accepted", passed=rounds.accepted > 0, detail=detail)


def _rejected(judged: Sequence[tuple[int, int]]) -> Guard:
    """Some draft was rejected; else rolling back was never put to the test."""
    rejected = sum(accepted < drafted for drafted, accepted in judged)
    detail = f"{rejected} of {len(judged)} rounds reject a draft"
    if not rejected:
        detail += (
            ", so rolling back was never put to the test: check more or longer requests, raise draft_length, or draw "
            "tokens (sampling: {temperature: 1}), by which even a near-lossless method errs; a `random` cell beside it "
            "shows rolling back of the same engine, but not of this cache"
        )
    return Guard(name="drafts_rejected", passed=rejected > 0, detail=detail)


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
