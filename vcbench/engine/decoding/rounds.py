"""One round: draft, verify, commit, roll back.

Acceptance rule: after the last token t, the drafter proposes d1 .. dk. The verifier's choices over the block
[t, d1 .. dk] are g0 .. gk. With a the length of the longest prefix in which d_i = g_(i-1), the round gives g0 .. ga:
what the verifier, decoding one by one, would have produced. A choice is the arg-max or, when sampling, a draw with
noise of its own position (`sampling/selector.py`); g_i is right if d1 .. d_i are, and only then is it used.

Under the full cache a round's tokens are committed. Under any other level they are a draft themselves: `Stack` goes on
round after round until it has as many as the level above wants.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vcbench.config.schema import DraftLength
from vcbench.engine.decoding.draft_length import draft_length
from vcbench.engine.decoding.levels import NOT_FINITE, CacheLevel, Drafter, Prefilled, Scores, Span, Verifier
from vcbench.engine.decoding.progress import Progress
from vcbench.engine.decoding.stopping import accepted_prefix
from vcbench.engine.kv.cache import EntrySource, KVCache
from vcbench.engine.types import BatchTiming, Round, Tally
from vcbench.errors import NumericError


@dataclass(frozen=True, slots=True)
class Judged:
    """One request's drafts and what the verifier says of them. A draft is never NOT_FINITE, so only the last token of
    `chosen` can be: those before it stand."""

    drafts: list[int]
    scores: Scores

    @property
    def accepted(self) -> int:
        """How many drafts the verifier agrees with."""
        return accepted_prefix(self.drafts, self.scores.choices)

    @property
    def chosen(self) -> list[int]:
        """The verifier's tokens: the accepted drafts and one of its own."""
        return self.scores.choices[: self.accepted + 1]

    @property
    def fault(self) -> bool:
        """Whether the verifier's own token is none, since its logits were not finite."""
        return self.chosen[-1] == NOT_FINITE

    @property
    def tokens(self) -> list[int]:
        """What the round gives."""
        return self.chosen[:-1] if self.fault else self.chosen


def draft(drafter: Drafter, spans: Sequence[Span], wanted: Mapping[str, int], vocab_size: int) -> dict[str, list[int]]:
    """What the drafter proposes for each request, as far as it is tokens."""
    drafts = drafter.propose(spans, wanted)
    return {key: in_vocabulary(ids, vocab_size) for key, ids in drafts.items()}


def judge(verifier: Verifier, spans: Sequence[Span], drafts: Mapping[str, list[int]]) -> dict[str, Judged]:
    """The verifier's pass over [last token, *drafts] of each request."""
    scores = verifier.score([span.followed_by(drafts[span.key], len(drafts[span.key]) + 1) for span in spans])
    return {span.key: Judged(drafts[span.key], scores[span.key]) for span in spans}


class Stack(Drafter):
    """A verifier whose drafts are drafted for in their turn: it proposes what it would propose alone.

    After each of its rounds both hold the entries that the verifier computed for what stands.
    """

    def __init__(self, drafter: Drafter, verifier: Verifier, rule: DraftLength) -> None:
        """rule: how many tokens the drafter proposes at a time."""
        self.drafter, self.verifier, self.rule = drafter, verifier, rule
        self._rounds: dict[str, list[Round]] = {}

    def admit(self, item: Prefilled) -> None:
        self.drafter.admit(item)
        self.verifier.admit(item)
        self._rounds[item.request.id] = []

    def release(self, request_id: str) -> None:
        self.drafter.release(request_id)
        self.verifier.release(request_id)
        del self._rounds[request_id]

    def propose(self, spans: Sequence[Span], wanted: Mapping[str, int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {span.key: [] for span in spans}
        going = list(spans)
        while going := [span for span in going if len(found[span.key]) < wanted[span.key]]:
            here = [span.followed_by(found[span.key]) for span in going]
            room = {span.key: wanted[span.key] - len(found[span.key]) - 1 for span in going}
            lengths = {key: min(draft_length(self.rule, self._rounds[key]), most) for key, most in room.items()}
            judged = judge(self.verifier, here, draft(self.drafter, here, lengths, self.verifier.vocab_size))
            for span in here:
                found[span.key] += self._settle(span, judged[span.key])
            going = [span for span in going if not judged[span.key].fault]
        return found

    def _settle(self, span: Span, judged: Judged) -> list[int]:
        """Leaves both levels with the entries of what stands but its last token, and returns what is new."""
        tokens, keep = judged.tokens, len(span.drafted) + len(judged.tokens)
        if tokens:
            done = Round(drafted=len(judged.drafts), accepted=judged.accepted, committed=len(tokens))
            self._rounds[span.key].append(done)
        self.verifier.roll_back(span.key, keep)
        self.drafter.refresh(span.key, keep, self.verifier.source(span.key))
        return tokens

    def refresh(self, request_id: str, count: int, source: EntrySource) -> None:
        self.drafter.refresh(request_id, count, source)
        self.verifier.refresh(request_id, count, source)

    def commit(self, request_id: str, count: int, source: EntrySource) -> None:
        self.drafter.commit(request_id, count, source)
        self.verifier.commit(request_id, count, source)

    def tallies(self, request_id: str) -> list[Tally]:
        *below, last = self.drafter.tallies(request_id)
        return [*below, replace(last, rounds=tuple(self._rounds[request_id])), *self.verifier.tallies(request_id)]

    def caches_of(self, request_id: str) -> list[KVCache]:
        return [*self.drafter.caches_of(request_id), *self.verifier.caches_of(request_id)]


def run_round(
    drafter: Drafter, verifier: CacheLevel, active: Sequence[Progress], rule: DraftLength, timing: BatchTiming
) -> None:
    """Advances every active request by at least one token, or ends it.

    A draft never goes past the cap: the block of k + 1 rows must fit into what may still be committed.
    """
    started = time.perf_counter()
    spans = [Span(progress) for progress in active]
    wanted = {
        progress.request.id: min(draft_length(rule, progress.rounds), progress.remaining - 1) for progress in active
    }
    drafts = draft(drafter, spans, wanted, verifier.vocab_size)
    drafted = time.perf_counter()
    judged = judge(verifier, spans, drafts)
    verified = time.perf_counter()
    for progress in active:
        settle(drafter, verifier, progress, judged[progress.request.id])
    timing.draft_s += drafted - started
    timing.verify_s += verified - drafted


def settle(drafter: Drafter, verifier: CacheLevel, progress: Progress, judged: Judged) -> None:
    """Commits what the verifier agrees with to the request and to all levels; it may have ended the request."""
    key = progress.request.id
    committed = progress.commit(judged.tokens, judged.scores.logits)
    if committed:
        progress.rounds.append(
            Round(drafted=len(judged.drafts), accepted=min(judged.accepted, committed), committed=committed)
        )
    drafter.commit(key, committed, verifier.source(key))
    verifier.commit(key, committed)
    if judged.fault and not progress.finished:
        fail(verifier, progress)


def step_once(level: CacheLevel, active: Sequence[Progress]) -> None:
    """One token for every active request, decoded one by one."""
    judged = judge(level, [Span(progress) for progress in active], {progress.request.id: [] for progress in active})
    for progress in active:
        key = progress.request.id
        level.commit(key, progress.commit(judged[key].tokens, judged[key].scores.logits))
        if judged[key].fault:
            fail(level, progress)


def fail(level: CacheLevel, progress: Progress) -> None:
    """Ends a request whose next logits are not finite."""
    where = level.locate_fault(progress.request.id, [progress.last])
    progress.fail(NumericError(f"logits are not finite at step {len(progress.token_ids)}, first in {where}"))


def in_vocabulary(ids: Sequence[int], vocab_size: int) -> list[int]:
    """A draft up to its first id that is no token; the rest counts as never proposed."""
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            return list(ids[:index])
    return list(ids)
