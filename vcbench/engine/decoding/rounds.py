"""One round: draft, verify, commit, roll back.

Acceptance rule: from the last committed token t, the drafter proposes d1 .. dk. The verifier's choices over the block
[t, d1 .. dk] are g0 .. gk. With a the length of the longest prefix in which d_i = g_(i-1), the round commits g0 .. ga:
what decoding one by one would have produced. A choice is the arg-max or, when sampling, a draw with noise of its own
position (`sampling/selector.py`); g_i is right if d1 .. d_i are, and only then is it used.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from vcbench.config.schema import DraftLength
from vcbench.engine.decoding.draft_length import draft_length
from vcbench.engine.decoding.levels import NOT_FINITE, CacheLevel, Level, Scores, Span
from vcbench.engine.decoding.progress import Progress
from vcbench.engine.decoding.stopping import accepted_prefix
from vcbench.engine.types import BatchTiming, Round
from vcbench.errors import NumericError


def run_round(
    drafter: Level, verifier: CacheLevel, active: Sequence[Progress], rule: DraftLength, vocab_size: int,
    timing: BatchTiming,
) -> None:  # fmt: skip
    """Advances every active request by at least one token, or ends it.

    A draft never goes past the cap: the block of k + 1 rows must fit into what may still be committed.
    """
    started = time.perf_counter()
    wanted = {
        progress.request.id: min(draft_length(rule, progress.rounds), progress.remaining - 1) for progress in active
    }
    drafts = drafter.propose(wanted, active)
    drafts = {key: in_vocabulary(ids, vocab_size) for key, ids in drafts.items()}
    drafted = time.perf_counter()
    spans = [Span(progress, ids, len(ids) + 1) for progress in active for ids in [drafts[progress.request.id]]]
    scores = verifier.score(spans)
    verified = time.perf_counter()
    for progress in active:
        key = progress.request.id
        settle(drafter, verifier, progress, drafts[key], scores[key])
    timing.draft_s += drafted - started
    timing.verify_s += verified - drafted
    timing.steps += 1


def settle(drafter: Level, verifier: CacheLevel, progress: Progress, drafts: Sequence[int], scores: Scores) -> None:
    """Commits what the verifier agrees with to the request and to both levels.

    A draft is never NOT_FINITE, so that only the last of the chosen can be: those before it stand, and may have ended
    the request.
    """
    key = progress.request.id
    accepted = accepted_prefix(drafts, scores.choices)
    chosen = scores.choices[: accepted + 1]
    fault = chosen[-1] == NOT_FINITE
    committed = progress.commit(chosen[:accepted] if fault else chosen, scores.logits)
    if committed:
        progress.rounds.append(Round(drafted=len(drafts), accepted=min(accepted, committed), committed=committed))
    verifier.commit(key, committed, None)
    drafter.commit(key, committed, verifier.full_cache(key))
    if fault and not progress.finished:
        where = verifier.locate_fault(key, [progress.last])
        step = len(progress.token_ids)
        progress.fail(NumericError(f"logits are not finite at step {step}, first in {where}"))


def in_vocabulary(ids: Sequence[int], vocab_size: int) -> list[int]:
    """A draft up to its first id that is no token; the rest counts as never proposed."""
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            return list(ids[:index])
    return list(ids)
