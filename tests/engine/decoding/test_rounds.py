"""Rounds on a scripted model: what is committed is what one-by-one decoding would have given, whatever was drafted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.decoding.scripted import (
    VOCABULARY,
    Distort,
    ScriptedDecoder,
    ScriptedFull,
    accepting,
    continuation,
    decode,
    faithful,
    logits_row,
    prefilled,
)
from vcbench.engine.decoding.levels import CacheLevel, Level, Scores
from vcbench.engine.decoding.progress import Progress
from vcbench.engine.decoding.rounds import in_vocabulary, run_round
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import BatchTiming, Generation, Request, Round

PROMPT = (5, 9, 4)
OUTPUT = continuation(PROMPT, 30)


def request(key: str = "r", prompt: tuple[int, ...] = PROMPT, max_tokens: int = 20, **stops: Any) -> Request:
    return Request(id=key, prompt_ids=prompt, max_tokens=max_tokens, **stops)


def check_same(ours: Generation, full: Generation) -> None:
    """Equal in all that a reader of records sees, and the counters add up."""
    assert ours.token_ids == full.token_ids
    assert ours.finish_reason == full.finish_reason
    assert ours.logits_sha256 == full.logits_sha256
    assert ours.error == full.error
    assert len(ours.token_ids) == 1 + sum(done.committed for done in ours.rounds)
    for done in ours.rounds:
        assert 0 <= done.accepted <= done.drafted
        assert 1 <= done.committed <= done.accepted + 1


@pytest.mark.parametrize("draft_length", range(1, 9))
@pytest.mark.parametrize("accepted", [0, 1, 2, 3, 8])
def test_output_is_that_of_one_by_one_decoding(draft_length: int, accepted: int) -> None:
    (ours,) = decode([prefilled(request())], "vericache", draft_length, accepting(accepted))
    (full,) = decode([prefilled(request())])

    check_same(ours, full)
    assert ours.token_ids == OUTPUT[:20]
    rounds_before_the_cap = [done for done in ours.rounds if done.drafted == draft_length]
    assert {done.accepted for done in rounds_before_the_cap} == {min(accepted, draft_length)}
    assert {done.committed for done in rounds_before_the_cap} == {min(accepted, draft_length) + 1}


@pytest.mark.parametrize("draft_length", range(1, 9))
@pytest.mark.parametrize("place", range(13))
@pytest.mark.parametrize("distort", [faithful, accepting(0), accepting(2)], ids=["all", "none", "two"])
def test_a_stop_id_ends_the_output_at_every_offset_of_a_block(place: int, draft_length: int, distort: Distort) -> None:
    """First token, middle of a block, last draft, bonus token."""
    stopped = request(stop_ids=frozenset({OUTPUT[place]}))
    (ours,) = decode([prefilled(stopped)], "vericache", draft_length, distort)
    (full,) = decode([prefilled(stopped)])

    check_same(ours, full)
    assert ours.token_ids == OUTPUT[: place + 1]
    assert ours.finish_reason == "stop"


@pytest.mark.parametrize("draft_length", range(1, 9))
def test_the_first_of_two_stop_ids_counts(draft_length: int) -> None:
    stopped = request(stop_ids=frozenset({OUTPUT[9], OUTPUT[6]}))
    (ours,) = decode([prefilled(stopped)], "vericache", draft_length)

    assert ours.token_ids == OUTPUT[:7]
    assert ours.finish_reason == "stop"


def test_counters_do_not_count_what_a_stop_cut_off() -> None:
    """[d1, d2, stop, d4, d5, bonus] is three tokens, not six."""
    (ours,) = decode([prefilled(request(stop_ids=frozenset({OUTPUT[3]})))], "vericache", 5)

    assert ours.rounds == [Round(drafted=5, accepted=3, committed=3)]


@pytest.mark.parametrize("stop", [None, 1, 3, 4, 5, 8, 20])
@pytest.mark.parametrize("cap", range(1, 11))
@pytest.mark.parametrize("distort", [faithful, accepting(1)], ids=["all", "one"])
def test_the_cap_and_a_stop_before_or_after_it(cap: int, stop: int | None, distort: Distort) -> None:
    stops = frozenset() if stop is None else frozenset({OUTPUT[stop]})
    capped = request(max_tokens=cap, stop_ids=stops)
    (ours,) = decode([prefilled(capped)], "vericache", 4, distort)
    (full,) = decode([prefilled(capped)])
    stops_first = stop is not None and stop < cap

    check_same(ours, full)
    assert len(ours.token_ids) == (stop + 1 if stop is not None and stops_first else cap)
    assert ours.finish_reason == ("stop" if stops_first else "length")


def test_one_token_needs_no_round() -> None:
    (ours,) = decode([prefilled(request(max_tokens=1))], "vericache", 4)

    assert ours.rounds == []


@pytest.mark.parametrize("cap", range(1, 12))
def test_no_cache_ever_holds_more_than_the_request_may_have(cap: int) -> None:
    """Prompt and output but for the last token, whose entry nobody needs: a verify block fits under the limit."""
    item = prefilled(request(max_tokens=cap))
    decode([item], "vericache", 8)

    assert cast(ScriptedFull, item.prefill.cache).longest <= len(PROMPT) + cap - 1


def test_the_snapshot_is_left_as_found() -> None:
    item = prefilled(request())
    decode([item], "vericache", 3, accepting(1))
    cache = cast(ScriptedFull, item.prefill.cache)

    assert cache.ids == list(PROMPT)
    assert cache.tokens == cache.committed == len(PROMPT)


class Letters:
    """Text of a token: a letter or, for every fourth, two."""

    def push(self, token_id: int) -> str:
        letter = chr(ord("a") + token_id % 26)
        return letter * 2 if token_id % 4 == 0 else letter


def text_of(ids: Sequence[int]) -> list[str]:
    letters = Letters()
    return [letters.push(token) for token in ids]


@pytest.mark.parametrize("draft_length", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_stop_string_ends_with_the_token_that_completes_it(first: int, pieces: int, draft_length: int) -> None:
    stop = "".join(text_of(OUTPUT[first : first + pieces]))
    stopped = request(stop_strings=("never", stop))
    (ours,) = decode([prefilled(stopped)], "vericache", draft_length, accepting(3), Letters)
    (full,) = decode([prefilled(stopped)], stream=Letters)
    expected = next(count for count in range(1, 31) if stop in "".join(text_of(OUTPUT[:count])))

    check_same(ours, full)
    assert ours.token_ids == OUTPUT[:expected]
    assert ours.finish_reason == "stop"


class Proposer(Level):
    """Proposes what it is told, whatever was asked for."""

    def __init__(self, drafts: Sequence[int]) -> None:
        self.drafts = list(drafts)
        self.committed: list[tuple[int, FullCache | None]] = []

    def propose(self, wanted: Mapping[str, int], active: Sequence[Progress]) -> dict[str, list[int]]:
        return {key: self.drafts[: wanted[key]] for key in wanted}

    def score(self, blocks: Mapping[str, Sequence[int]]) -> dict[str, Scores]:
        raise NotImplementedError

    def commit(self, request_id: str, count: int, verified: FullCache | None) -> None:
        self.committed.append((count, verified))


def one_round(drafts: Sequence[int], wanted: int = 6) -> tuple[Progress, Proposer, ScriptedFull]:
    """A round from the state after the first token."""
    progress, cache, proposer = Progress(request()), ScriptedFull(PROMPT), Proposer(drafts)
    progress.commit([OUTPUT[0]], logits_row(OUTPUT[0], 3)[None])
    verifier = CacheLevel(cast(Decoder, ScriptedDecoder()), {"r": cache})
    run_round(proposer, verifier, [progress], wanted, VOCABULARY, BatchTiming())
    return progress, proposer, cache


@pytest.mark.parametrize("wrong", [VOCABULARY, -1, 10**9])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_an_id_that_is_no_token_ends_the_draft(place: int, wrong: int) -> None:
    drafts = OUTPUT[1:6]
    drafts[place] = wrong
    progress, proposer, cache = one_round(drafts)

    assert progress.token_ids == OUTPUT[: place + 2]
    assert progress.rounds == [Round(drafted=place, accepted=place, committed=place + 1)]
    assert proposer.committed == [(place + 1, cache)]


@pytest.mark.parametrize("count", range(7))
def test_a_draft_may_be_shorter_than_asked(count: int) -> None:
    progress, _, cache = one_round(OUTPUT[1 : 1 + count])

    assert progress.rounds == [Round(drafted=count, accepted=count, committed=count + 1)]
    assert cache.ids == [*PROMPT, *OUTPUT[: count + 1]]


def test_after_a_round_the_full_cache_is_that_of_a_run_that_never_drafted() -> None:
    progress, _, cache = one_round([OUTPUT[1], OUTPUT[2], 0, OUTPUT[4]])

    assert progress.token_ids == OUTPUT[:4]
    assert cache.ids == [*PROMPT, *OUTPUT[:3]]
    assert cache.tokens == cache.committed == len(cache.ids)


@given(st.lists(st.integers(-2, VOCABULARY + 2), max_size=8))
def test_a_draft_is_cut_at_the_first_id_that_is_no_token(ids: list[int]) -> None:
    kept = in_vocabulary(ids, VOCABULARY)

    assert kept == ids[: len(kept)]
    assert all(0 <= token < VOCABULARY for token in kept)
    assert len(kept) == len(ids) or not 0 <= ids[len(kept)] < VOCABULARY


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 9), st.integers(1, 25))
def test_acceptance_of_any_pattern_gives_the_same_output(pattern: list[int], draft_length: int, cap: int) -> None:
    def distort(drafted: int, position: int, token: int) -> int | None:
        return token if drafted < pattern[position % len(pattern)] else (token + 40) % VOCABULARY

    (ours,) = decode([prefilled(request(max_tokens=cap))], "vericache", draft_length, distort)
    (full,) = decode([prefilled(request(max_tokens=cap))])

    check_same(ours, full)


def test_rows_of_a_batch_accept_different_numbers() -> None:
    """Forced to 0, 2 and all of 5, with prompts of 1, 7 and 64 tokens."""
    prompts = [tuple(range(size)) for size in (1, 7, 64)]
    batch = [prefilled(request(str(i), prompt, 25)) for i, prompt in enumerate(prompts)]
    distort = {prompt: accepting(count) for prompt, count in zip(prompts, (0, 2, 5), strict=True)}
    together = decode(batch, "vericache", 5, distort)
    for item, ours, count in zip(batch, together, (0, 2, 5), strict=True):
        (alone,) = decode([item])
        check_same(ours, alone)
        assert ours.rounds[0] == Round(drafted=5, accepted=count, committed=count + 1)


def test_a_row_that_ends_early_neither_stops_the_batch_nor_goes_on() -> None:
    prompts = [tuple(range(size)) for size in (3, 4, 5)]
    caps = (2, 30, 7)
    batch = [prefilled(request(str(i), p, cap)) for i, (p, cap) in enumerate(zip(prompts, caps, strict=True))]
    together = decode(batch, "vericache", 4, accepting(1))
    for item, ours, cap in zip(batch, together, caps, strict=True):
        assert len(ours.token_ids) == cap
        assert ours.token_ids == continuation(item.request.prompt_ids, cap)
        assert cast(ScriptedFull, item.prefill.cache).longest <= len(item.request.prompt_ids) + cap - 1


def failing_at(step: int) -> Distort:
    """NaN in place of the logits of an output token."""
    return lambda drafted, position, token: None if position == len(PROMPT) + step else token


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("draft_length", [1, 3, 8])
def test_nan_in_the_draft_is_a_rejection(step: int, draft_length: int) -> None:
    (ours,) = decode([prefilled(request())], "vericache", draft_length, failing_at(step))
    (full,) = decode([prefilled(request())])

    check_same(ours, full)
    assert ours.error is None


@pytest.mark.parametrize("step", range(9))
@pytest.mark.parametrize("draft_length", [1, 3, 8])
@pytest.mark.parametrize("accepted", [0, 2, 8])
def test_nan_in_verification_fails_the_request_where_decoding_would_have(
    step: int, draft_length: int, accepted: int
) -> None:
    """With the tokens before it, which were right, and the step in the message."""
    (ours,) = decode([prefilled(request(), failing_at(step))], "vericache", draft_length, accepting(accepted))
    (full,) = decode([prefilled(request(), failing_at(step))])

    assert full.finish_reason == ours.finish_reason == "error"
    assert full.token_ids == OUTPUT[:step]
    assert ours.token_ids == full.token_ids
    assert ours.error == full.error
    assert f"not finite at step {step}" in str(ours.error)
    assert sum(done.committed for done in ours.rounds) == max(0, step - 1)


@pytest.mark.parametrize("draft_length", [2, 4, 8])
def test_nan_after_a_stop_in_the_same_block_does_not_matter(draft_length: int) -> None:
    stopped = request(stop_ids=frozenset({OUTPUT[2]}))
    (ours,) = decode([prefilled(stopped, failing_at(3))], "vericache", draft_length)

    assert ours.token_ids == OUTPUT[:3]
    assert ours.finish_reason == "stop"
    assert ours.error is None


def test_a_failed_request_leaves_the_others_alone() -> None:
    prompts = [tuple(range(size)) for size in (3, 4, 5)]
    batch = [
        prefilled(request(str(size), prompt), failing_at(4) if size == 1 else faithful)
        for size, prompt in enumerate(prompts)
    ]
    good, failed, also_good = decode(batch, "vericache", 3)

    assert failed.finish_reason == "error"
    assert good.token_ids == continuation(prompts[0], 20)
    assert also_good.token_ids == continuation(prompts[2], 20)
