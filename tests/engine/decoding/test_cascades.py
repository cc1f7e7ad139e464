"""Levels stacked to any height give full KV's output bit for bit: every pair and triple, greedy and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compressors.examples import make
from tests.engine import tiny
from tests.engine.cells import METHODS, batch, check_same, full_outputs, prefilled, request
from vcbench.config.sampling import Sampling
from vcbench.config.schema import AdaptiveDraft, DraftLength
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.session import CellSetup, LevelSetup, Lookup, StreamFactory, run_cell
from vcbench.engine.types import Generation

NGRAM = "ngram"
LOWER = (NGRAM, *METHODS)
KINDS = ("snapkv", "streamingllm", "h2o", "kivi", "int8", "turboquant", "kvquant", "pyramidkv", "none")
"""A method for every class of cache."""
LENGTHS: tuple[DraftLength, ...] = (3, 9, 5)


def level(name: str, draft_length: DraftLength) -> LevelSetup:
    source = Lookup(1) if name == NGRAM else make(METHODS[name])
    return LevelSetup(name=name, drafts_by=source, draft_length=draft_length)


def decode(
    names: Sequence[str],
    items: Sequence[Prefilled],
    lengths: Sequence[DraftLength] = LENGTHS,
    stream: StreamFactory | None = None,
    **rest: Any,
) -> list[Generation]:
    """A cell of these levels and the full cache on top."""
    levels = tuple(level(name, length) for name, length in zip(names, lengths, strict=False))
    setup = CellSetup(arm="vericache" if names else "full", levels=levels, seed=11, **rest)
    ended: dict[str, Generation] = {}
    decoder = tiny.decoder()
    run_cell(decoder, setup, items, on_end=lambda done: ended.__setitem__(done.request_id, done), stream=stream)
    return [ended[item.request.id] for item in items]


def check_counts(done: Generation, names: Sequence[str]) -> None:
    """Counts of every level agree with each other and with the output."""
    assert [each.name for each in done.levels] == [*names, "full"]
    *below, full = done.levels
    assert full.passes == len(done.rounds)
    assert tuple(below[-1].rounds) == tuple(done.rounds)
    for lower, upper in pairwise(below):
        assert sum(each.committed for each in lower.rounds) == sum(each.drafted for each in upper.rounds)
        assert upper.passes == len(lower.rounds)
    for each in below:
        assert all(0 <= one.accepted <= one.drafted for one in each.rounds)
        assert (each.passes == 0) == (each.name == NGRAM or not sum(one.drafted for one in each.rounds))
    assert len({each.tokens for each in done.levels if each.tokens is not None}) == 1


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize("upper", KINDS)
def test_every_pair_below_the_full_cache_gives_its_output(name: str, upper: str) -> None:
    if name == upper:
        pytest.skip("a level drafts for another one")
    items = batch("ragged", tiny.decoder())
    for done, full in zip(decode((name, upper), items), full_outputs("ragged", tiny.decoder()), strict=True):
        check_same(done, full)
        check_counts(done, (name, upper))


@pytest.mark.parametrize("names", list(permutations(("streamingllm", "h2o", "int8", "kvquant"), 3)), ids="-".join)
def test_every_triple_gives_its_output(names: tuple[str, ...]) -> None:
    items = batch("ragged", tiny.decoder())
    for done, full in zip(decode(names, items), full_outputs("ragged", tiny.decoder()), strict=True):
        check_same(done, full)
        check_counts(done, names)


@pytest.mark.parametrize("names", [(NGRAM,), (NGRAM, "snapkv"), (NGRAM, "snapkv", "int8")], ids="-".join)
@pytest.mark.parametrize(
    "lengths", [(1, 1, 1), (4, 40, 12), (40, 3, 40), (AdaptiveDraft(), AdaptiveDraft(max=7), 5)], ids=str
)
def test_any_draft_lengths_do(names: tuple[str, ...], lengths: Sequence[DraftLength]) -> None:
    items = batch("ragged", tiny.decoder())
    for done, full in zip(decode(names, items, lengths), full_outputs("ragged", tiny.decoder()), strict=True):
        check_same(done, full)
        check_counts(done, names)


@pytest.mark.parametrize(
    "names", [(NGRAM,), (NGRAM, "snapkv"), ("streamingllm", "int8"), ("h2o", "kivi")], ids="-".join
)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=5),
        Sampling(temperature=0.7, top_k=20, top_p=0.9, seed=1),
        Sampling(repetition_penalty=1.4, frequency_penalty=0.3),
        Sampling(temperature=1.2, presence_penalty=0.5, min_tokens=9, seed=3),
    ],
    ids=["drawn", "filtered", "penalised", "both"],
)
def test_drawn_and_penalised_outputs_are_the_same(names: tuple[str, ...], sampling: Sampling) -> None:
    """A level in the middle chooses by what is committed and all that was drafted up to there."""
    ids = [tiny.token_ids(n, seed=n) for n in (40, 7)]
    items = [
        prefilled(request(each, str(n), 24, sampling=sampling, stop_ids=frozenset({3, 4})))
        for n, each in enumerate(ids)
    ]
    for done, full in zip(decode(names, items), decode((), items), strict=True):
        check_same(done, full)
        check_counts(done, names)


class Letters:
    """Text of a token: one of four letters."""

    def push(self, token_id: int) -> str:
        return "abcd"[token_id % 4]


@settings(max_examples=25, deadline=None)
@given(
    names=st.permutations((NGRAM, "snapkv", "streamingllm", "int8")).filter(lambda names: NGRAM not in names[1:3]),
    height=st.integers(1, 3),
    lengths=st.tuples(*[st.integers(1, 12)] * 3),
    cap=st.integers(1, 20),
    stop=st.integers(0, 19),
    text=st.sampled_from(((), ("ab",), ("ddd", "ca"))),
)
def test_stops_and_the_cap_inside_drafts_of_any_level(
    names: tuple[str, ...], height: int, lengths: tuple[int, ...], cap: int, stop: int, text: tuple[str, ...]
) -> None:
    ids = tiny.token_ids(25, seed=8)
    (free,) = decode((), [prefilled(request(ids))])
    stops = frozenset({free.token_ids[stop]})
    item = prefilled(request(ids, max_tokens=cap, stop_ids=stops, stop_strings=text))
    (full,) = decode((), [item], stream=Letters)
    (done,) = decode(names[:height], [item], lengths, stream=Letters)
    check_same(done, full)
    check_counts(done, names[:height])


@pytest.mark.parametrize("names", [(NGRAM, "snapkv"), ("snapkv", "int8")], ids="-".join)
def test_the_full_cache_may_lie_on_disk(names: tuple[str, ...]) -> None:
    items = batch("ragged", tiny.decoder())
    for done, full in zip(decode(names, items, full_cache="disk"), full_outputs("ragged", tiny.decoder()), strict=True):
        check_same(done, full)


def test_a_near_lossless_level_saves_loads_of_the_full_cache() -> None:
    """A cascade reads the full cache as seldom as the upper level alone would let it, or nearly."""
    items = batch("ragged", tiny.decoder())
    cascade, alone = decode(("snapkv", "int8"), items, (4, 20)), decode(("snapkv",), items, (4,))
    upper = decode(("int8",), items, (20,))
    loads = [sum(done.levels[-1].passes for done in each) for each in (cascade, alone, upper)]
    assert loads[0] < loads[1] / 1.5
    assert loads[0] <= loads[2] * 1.25


def test_drafts_of_a_stack_are_those_of_its_verifier_alone() -> None:
    """Below a level that holds all entries, nothing is rejected, whoever drafts for it."""
    items = batch("ragged", tiny.decoder())
    for done in decode((NGRAM, "none"), items):
        assert all(each.accepted == each.drafted for each in done.rounds)


def test_not_finite_drafts_of_any_level_are_rejections() -> None:
    """A middle level whose numbers break down proposes nothing; the output is full KV's."""
    decoder, ids = tiny.fresh_decoder(), tiny.token_ids(30, seed=2)
    item = Prefilled(request(ids), decoder.prefill(ids, chunk=64, query_window=32))
    expected: list[Generation] = []
    run_cell(decoder, CellSetup(arm="full"), [item], on_end=expected.append)
    for broken in (0, 1):
        levels = [level(name, 4) for name in ("snapkv", "int8")]
        levels[broken] = replace(levels[broken], drafts_by=Poisoned(levels[broken].drafts_by))
        ended: list[Generation] = []
        setup = CellSetup(arm="vericache", levels=tuple(levels))
        run_cell(decoder, setup, [item], on_end=ended.append)
        check_same(ended[0], expected[0])


class Poisoned:
    """A compressor whose caches hold an entry that is not a number."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def compress(self, prefill: Any, *, seed: int) -> Any:
        cache = self.inner.compress(prefill, seed=seed)
        store = cache.store if hasattr(cache, "store") else cache.tail
        for page in store.tensors():
            page.fill_(float("nan"))
        return cache
