"""StreamingLLM: what is held after any pattern of appends, and that attention over it is masked full attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.compressors import examples, tiny
from tests.engine.reference import attention
from vcbench.compressors.streamingllm import StreamingLLM, StreamingLLMOptions, window_budget
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.kept import WindowCache, runs

HEADS, KV_HEADS, SIZE = 6, 2, 20


def expected_positions(tokens: int, sinks: int, window: int) -> set[int]:
    """A-STR-1: the first `sinks` and the last `window`."""
    return set(range(min(sinks, tokens))) | set(range(max(0, tokens - window), tokens))


def held(cache: WindowCache) -> list[set[int]]:
    """Positions of each layer and head; none may be there twice."""
    rows = tiny.positions_of(cache).flatten(0, 1).tolist()
    assert all(len(set(row)) == len(row) for row in rows)
    return [set(row) for row in rows]


def compressed(tokens: int, sinks: int, window: int) -> tuple[FullCache, WindowCache]:
    full = tiny.random_cache(tokens, kv_heads=KV_HEADS, heads=HEADS)
    options = StreamingLLMOptions(sinks=sinks, budget_tokens=sinks + window)
    cache = StreamingLLM(options).compress(tiny.prefill_of(full), seed=0)
    assert isinstance(cache, WindowCache)
    return full, cache


sizes = st.tuples(st.integers(1, 90), st.integers(0, 5), st.integers(1, 20))
appends = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 31)), max_size=8)


@given(sizes, appends)
def test_sinks_and_window_are_held_after_any_appends(
    size: tuple[int, int, int], pattern: list[tuple[int, int]]
) -> None:
    tokens, sinks, window = size
    full, cache = compressed(*size)
    assert held(cache) == [expected_positions(tokens, sinks, window)] * 4
    for number, (drafted, wanted) in enumerate(pattern):
        committed = min(wanted, drafted + 1)
        examples.append(cache, drafted, seed=number)
        examples.append(full, 31, seed=number)
        full.commit(committed)
        cache.commit(committed, full)
        tokens += committed
        assert held(cache) == [expected_positions(tokens, sinks, window)] * 4
        k, v, positions = cache.materialize(1)
        full_k, full_v, _ = full.materialize(1)
        assert torch.equal(k, full_k[:, positions[0]])
        assert torch.equal(v, full_v[:, positions[0]])


@pytest.mark.parametrize("drafted", [0, 1, 5])
@pytest.mark.parametrize("tokens", [1, 4, 5, 15, 16, 17, 70])
def test_attention_is_full_attention_with_a_mask(tokens: int, drafted: int) -> None:
    """A-STR-3: keys keep the rotation of their original position, so that nothing but the mask differs.

    Until the next commit a draft sees all of itself besides the window.
    """
    sinks, window = 4, 12
    full, cache = compressed(tokens, sinks, window)
    for either in (full, cache):
        examples.append(either, drafted, seed=1)
    queries = examples.entries(full, 1, 9, HEADS)
    for layer in range(2):
        k, v = (examples.entries(full, 1, seed)[layer] for seed in (7, 8))
        for either in (full, cache):
            either.write(layer, k, v)
        ours = cache.attend(layer, queries[layer])
        keys, values = full.store.read_range(layer, 0, tokens + drafted + 1)
        seen = sorted(expected_positions(tokens, sinks, window) | set(range(tokens, tokens + drafted + 1)))
        expected = attention(queries[layer], keys[:, seen], values[:, seen], len(seen))
        torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


def test_a_token_far_outside_the_window_cannot_be_attended_to() -> None:
    full, cache = compressed(70, 4, 12)
    before = examples.attended(cache)
    full.store.write(0, 30, torch.full((1, KV_HEADS, SIZE), 100.0), torch.full((1, KV_HEADS, SIZE), 100.0))
    options = StreamingLLMOptions(sinks=4, budget_tokens=16)
    again = StreamingLLM(options).compress(tiny.prefill_of(full), seed=0)

    assert torch.equal(examples.attended(again), before)


@pytest.mark.parametrize(("tokens", "budget"), [(1, 5), (20, 5), (22, 6), (400, 100)])
def test_the_window_follows_the_prompt(tokens: int, budget: int) -> None:
    """A quarter, sinks included, and at least one token besides the sinks."""
    assert window_budget(StreamingLLMOptions(), tokens) == budget


@given(st.lists(st.integers(0, 9), max_size=12))
def test_runs_cover_every_slot_in_order(slots: list[int]) -> None:
    ranges = runs(slots)

    assert [slot for first, last in ranges for slot in range(slots[first], slots[first] + last - first)] == slots
    assert all(first < last for first, last in ranges)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 0.5}, "factor is 0.5"),
        ({"sinks": -1}, "sinks is -1; give 0 or more"),
        ({"sinks": 4, "budget_tokens": 4}, "budget_tokens is 4; give more than the 4 sinks"),
    ],
)
def test_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamingLLMOptions(**options)
