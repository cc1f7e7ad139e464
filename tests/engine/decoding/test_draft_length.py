"""The adaptive draft length: its rule by hand, what it sees, and that no output depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compressors.examples import make
from tests.engine import cells as decoding
from tests.engine import tiny
from tests.engine.cells import METHODS
from tests.engine.decoding.scripted import accepting, decode, prefilled
from vcbench.config.sampling import Sampling
from vcbench.config.schema import AdaptiveDraft
from vcbench.engine.decoding.draft_length import DECAY, acceptance_rate, draft_length, most_tokens_per_cost
from vcbench.engine.types import Generation, Request, Round

AUTO = AdaptiveDraft()
ROUNDS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(
        lambda pair: Round(drafted=max(pair), accepted=min(pair), committed=min(pair) + 1)
    ),
    max_size=80,
)


def brute_force(rate: float, bounds: AdaptiveDraft) -> int:
    lengths = range(bounds.min, bounds.max + 1)
    return max(lengths, key=lambda k: sum(rate**i for i in range(k + 1)) / (k + bounds.verify_cost))


@given(
    rate=st.floats(0.01, 0.99),
    low=st.integers(1, 10),
    more=st.integers(0, 40),
    cost=st.floats(0.5, 30),
)
def test_the_best_length_within_bounds(rate: float, low: int, more: int, cost: float) -> None:
    bounds = AdaptiveDraft(min=low, max=low + more, verify_cost=cost)
    found, best = most_tokens_per_cost(rate, bounds), brute_force(rate, bounds)

    def gain(k: int) -> float:
        return sum(rate**i for i in range(k + 1)) / (k + cost)

    assert bounds.min <= found <= bounds.max
    assert gain(found) == pytest.approx(gain(best), rel=1e-12)


def test_the_estimate_by_hand() -> None:
    assert acceptance_rate([]) == 8 / 9
    assert acceptance_rate([Round(drafted=5, accepted=2, committed=3)]) == pytest.approx(
        (8 + DECAY * 2) / (9 + DECAY * 3)
    )
    both = [Round(drafted=5, accepted=2, committed=3), Round(drafted=4, accepted=4, committed=5)]
    assert acceptance_rate(both) == pytest.approx((8 + DECAY**2 * 2 + DECAY * 4) / (9 + DECAY**2 * 3 + DECAY * 4))


@given(rounds=ROUNDS)
def test_the_length_keeps_its_bounds_whatever_was_seen(rounds: Sequence[Round]) -> None:
    assert 0 < acceptance_rate(rounds) < 1
    assert 3 <= draft_length(AdaptiveDraft(min=3, max=12), rounds) <= 12
    assert draft_length(7, rounds) == 7


def test_it_grows_while_drafts_are_right_and_shrinks_when_they_are_not() -> None:
    long = Request(id="r", prompt_ids=(5, 9, 4), max_tokens=400)
    (right,) = decode([prefilled(long)], "vericache", AUTO)
    (wrong,) = decode([prefilled(long)], "vericache", AUTO, accepting(0))
    (two,) = decode([prefilled(long)], "vericache", AUTO, accepting(2))
    first = draft_length(AUTO, [])

    assert [right.rounds[0].drafted, wrong.rounds[0].drafted] == [first, first]
    assert max(done.drafted for done in right.rounds) >= 20
    assert wrong.rounds[50].drafted == 1
    assert 2 <= two.rounds[50].drafted <= 4
    assert right.token_ids == wrong.token_ids == two.token_ids


def counts(done: Generation) -> list[tuple[int, int, int]]:
    return [(r.drafted, r.accepted, r.committed) for r in done.rounds]


def test_drafted_lengths_do_not_depend_on_the_batch() -> None:
    """A request with good drafts beside one with bad ones: each drafts as it would alone."""
    good, bad = (Request(id=str(n), prompt_ids=(5, n, 4), max_tokens=120) for n in (9, 10))
    distort = {good.prompt_ids: accepting(40), bad.prompt_ids: accepting(1)}
    together = decode([prefilled(good), prefilled(bad)], "vericache", AUTO, distort)
    alone = [decode([prefilled(wanted)], "vericache", AUTO, distort)[0] for wanted in (good, bad)]

    assert [counts(done) for done in together] == [counts(done) for done in alone]
    assert len({done.rounds[5].drafted for done in together}) == 2


@pytest.mark.parametrize("bounds", [AUTO, AdaptiveDraft(min=4, max=9), AdaptiveDraft(min=1, max=3, verify_cost=20.0)])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_stays_bitwise(name: str, bounds: AdaptiveDraft) -> None:
    """Alone and in a ragged batch, with the same rounds."""
    items = decoding.batch("ragged", tiny.decoder())
    ours = decoding.decode(items, "vericache", make(METHODS[name]), bounds)
    for done, full, item in zip(ours, decoding.full_outputs("ragged", tiny.decoder()), items, strict=True):
        decoding.check_same(done, full)
        (alone,) = decoding.decode([item], "vericache", make(METHODS[name]), bounds)
        assert counts(alone) == counts(done)
        assert all(done.drafted <= bounds.max for done in alone.rounds)


def test_sampled_outputs_stay_bitwise() -> None:
    wanted = replace(decoding.request(tiny.token_ids(60)), sampling=Sampling(temperature=0.9, top_p=0.9, seed=3))
    item = decoding.prefilled(wanted)
    (ours,) = decoding.decode([item], "vericache", make(METHODS["kivi"]), AUTO)
    (greedy,) = decoding.decode([decoding.prefilled(decoding.request(tiny.token_ids(60)))])

    decoding.check_same(ours, decoding.decode([item])[0])
    assert ours.token_ids != greedy.token_ids
    assert sum(done.accepted for done in ours.rounds) > 0
