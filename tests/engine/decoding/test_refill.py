"""Requests that come and go get what they get alone, and nothing of them stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compressors.examples import as_bytes, make, state
from tests.engine import tiny
from tests.engine.cells import METHODS, prefilled, request
from tests.engine.decoding.setups import cell
from tests.engine.decoding.test_cascades import level
from vcbench.config.sampling import Sampling
from vcbench.config.schema import Arm
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.session import CellSetup, Session, refill, run_cell
from vcbench.engine.types import Generation, Request

LENGTHS = (60, 1, 37, 9, 130, 20, 71)
CAPS = (3, 26, 11, 1, 18, 7, 22)
DRAWN = Sampling(temperature=1.0, top_p=0.95, seed=4)
CELLS: dict[str, CellSetup] = {
    "full": cell("full", seed=11),
    **{f"lossy {name}": cell("lossy", make(METHODS[name]), seed=11) for name in ("snapkv", "h2o", "tova", "kivi")},
    **{
        f"vericache {name}": cell("vericache", make(METHODS[name]), 5, seed=11)
        for name in ("snapkv", "h2o", "tova", "streamingllm", "kivi", "kvquant", "random")
    },
    "cascade": CellSetup(arm="vericache", levels=(level("ngram", 3), level("h2o", 7)), seed=11),
    "three": CellSetup(arm="vericache", levels=(level("ngram", 3), level("snapkv", 5), level("int8", 9)), seed=11),
}


def wanted(sampling: Sampling) -> list[Request]:
    """Requests of different lengths and caps."""
    return [
        request(tiny.token_ids(n, seed=n), f"r{n}", cap, sampling=sampling, stop_ids=frozenset({2, 3}))
        for n, cap in zip(LENGTHS, CAPS, strict=True)
    ]


def alone(setup: CellSetup, items: list[Prefilled]) -> dict[str, Generation]:
    """Each request by itself."""
    ended: list[Generation] = []
    for item in items:
        run_cell(tiny.decoder(), setup, [item], on_end=ended.append)
    return {done.request_id: done for done in ended}


def check_equal(ours: Generation, solo: Generation) -> None:
    """In everything but the clock, level by level and byte by byte."""
    for name in Generation.__slots__:
        if not name.endswith("_s"):
            assert getattr(ours, name) == getattr(solo, name), name


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("size", [1, 3])
def test_each_row_of_a_refilled_batch_is_its_solo_run(name: str, size: int, sampling: Sampling) -> None:
    setup, items = CELLS[name], [prefilled(each) for each in wanted(sampling)]
    before = [state(item.prefill.cache) for item in items]
    solo = alone(setup, items)
    session = Session(tiny.decoder(), setup)
    ended = {done.request_id: done for done in refill(session, iter(items), size)}
    assert ended.keys() == solo.keys()
    for key, done in ended.items():
        check_equal(done, solo[key])
    assert [state(item.prefill.cache) for item in items] == before
    assert session.rows == {}
    assert session.full.caches == {}


@settings(max_examples=20, deadline=None)
@given(
    plan=st.lists(st.tuples(st.sampled_from(["admit", "step", "release"]), st.integers(0, 6)), max_size=40),
    name=st.sampled_from(["full", "lossy h2o", "vericache h2o", "vericache kivi", "three"]),
)
def test_whoever_comes_and_goes_a_request_gets_its_own(plan: list[tuple[str, int]], name: str) -> None:
    """Admitted at any step, beside any others, let go before its end and taken in again."""
    setup, items = CELLS[name], [prefilled(each) for each in wanted(DRAWN)]
    solo = alone(setup, items)
    session, told = Session(tiny.decoder(), setup), dict[str, list[int]]()
    for action, number in plan:
        key = items[number].request.id
        if action == "admit" and key not in session.rows:
            session.admit(items[number])
            told[key] = []
        elif action == "release" and key in session.rows:
            session.release(key)
            assert as_bytes(items[number].prefill.cache.materialize(0)[0]) == as_bytes(
                prefilled(items[number].request).prefill.cache.materialize(0)[0]
            )
        elif action == "step":
            for event in session.step():
                told[event.request_id] += event.token_ids
                assert told[event.request_id] == solo[event.request_id].token_ids[: len(told[event.request_id])]
                if event.generation is not None:
                    check_equal(event.generation, solo[event.request_id])
    session.close()


def test_no_more_snapshots_are_alive_than_the_batch_has_room_for() -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def queue() -> Iterator[Prefilled]:
        nonlocal most
        for each in wanted(Sampling()):
            item = prefilled(each)
            alive.append(weakref.ref(item.prefill.cache))
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))
            yield item
            del item

    session = Session(tiny.decoder(), CELLS["three"])
    for _ in refill(session, queue(), 2):
        pass
    gc.collect()
    assert most == 2
    assert not any(ref() is not None for ref in alive)


def test_time_and_tokens_are_counted_between_takings() -> None:
    """Prefill is nobody's decoding; requests in a step are counted, so that a batch's mean size is known."""
    items = [prefilled(each) for each in wanted(Sampling())]
    session = Session(tiny.decoder(), CELLS["vericache snapkv"])
    parts, ended = [], []
    for done in refill(session, iter(items), 3):
        ended.append(done)
        parts.append(session.take_timing())
    assert sum(part.tokens for part in parts) == sum(len(done.token_ids) - 1 for done in ended)
    assert sum(part.row_steps for part in parts) == sum(len(done.rounds) for done in ended)
    assert all(part.row_steps <= 3 * part.steps for part in parts)
    assert session.take_timing().decode_s == 0
    for done in ended:
        assert 0 < done.decode_s <= sum(part.decode_s for part in parts)


@pytest.mark.parametrize("arm", ["full", "vericache"])
def test_a_request_is_there_once(arm: Arm) -> None:
    session = Session(tiny.decoder(), cell(arm, None if arm == "full" else make(METHODS["snapkv"]), 3))
    item = prefilled(request(tiny.token_ids(20)))
    session.admit(item)
    with pytest.raises(ValueError, match="request r has been admitted already"):
        session.admit(item)
    session.release("r")
    session.admit(item)
    assert session.active == ["r"]
    session.close()


def test_a_generator_that_is_left_lets_go_of_its_requests() -> None:
    items = [prefilled(each) for each in wanted(Sampling())]
    before = [state(item.prefill.cache) for item in items]
    session = Session(tiny.decoder(), CELLS["vericache kivi"])
    next(refill(session, iter(items), 3))
    session.close()
    assert [state(item.prefill.cache) for item in items] == before
