"""Re-indexed windows: a model of one layer cannot tell them from a text that consists of the tokens held."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors import examples, tiny
from vcbench.compressors.streamingllm import StreamingLLM, StreamingLLMOptions
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.reindexed import ReindexedCache
from vcbench.engine.model.decoder import Block, Decoder
from vcbench.models.architecture import Rope

YARN = Rope(theta=1000.0, kind="yarn", factor=4.0, original_max_position=256)
ONE_LAYER = replace(examples.ARCHITECTURE, n_layers=1)
SINKS, WINDOW = 3, 12


def method(positions: str = "reindexed") -> StreamingLLM:
    options = {"sinks": SINKS, "budget_tokens": SINKS + WINDOW, "positions": positions}
    return StreamingLLM(StreamingLLMOptions(**options))  # type: ignore[arg-type]


def held(ids: list[int]) -> list[int]:
    """The tokens that a window over `ids` holds."""
    return ids if len(ids) <= SINKS + WINDOW else ids[:SINKS] + ids[-WINDOW:]


def logits(decoder: Decoder, ids: list[int]) -> Tensor:
    """What follows a text, decoded afresh."""
    return decoder.prefill(ids, chunk=len(ids)).first_logits


@pytest.mark.parametrize("rope", [ONE_LAYER.rope, YARN], ids=["default", "yarn"])
@pytest.mark.parametrize("prompt", [1, 2, 15, 16, 90])
def test_decoding_is_that_of_the_tokens_held(prompt: int, rope: Rope) -> None:
    """A-STR-2, while the window slides past everything that the prompt left in it."""
    decoder = tiny.decoder(replace(ONE_LAYER, rope=rope))
    ids = tiny.token_ids(prompt + 30)
    cache = method().compress(decoder.prefill(ids[:prompt], chunk=64), seed=0)
    assert isinstance(cache, ReindexedCache)
    for step in range(prompt, prompt + 30):
        row = decoder.forward([Block(cache, [ids[step]])])[0]
        torch.testing.assert_close(row, logits(decoder, [*held(ids[:step]), ids[step]]), rtol=0, atol=2e-4)
        cache.commit(1)
    assert cache.evicted() == max(0, prompt + 30 - SINKS - WINDOW)


def test_a_draft_is_seen_whole_until_it_is_committed() -> None:
    decoder, ids = tiny.decoder(ONE_LAYER), tiny.token_ids(60)
    cache = method().compress(decoder.prefill(ids[:50], chunk=64), seed=0)
    rows = decoder.forward([Block(cache, ids[50:58])])
    for number in range(8):
        seen = [*held(ids[:50]), *ids[50 : 51 + number]]
        torch.testing.assert_close(rows[number], logits(decoder, seen), rtol=0, atol=2e-4)


def test_sinks_move_up_and_nothing_else_changes() -> None:
    full = examples.prefill(tiny.token_ids(80), method())
    ours, original = (method(positions).compress(full, seed=0) for positions in ("reindexed", "original"))
    for layer in range(2):
        k, v, positions = ours.materialize(layer)
        expected_k, expected_v, expected_positions = original.materialize(layer)
        assert torch.equal(positions, expected_positions)
        assert torch.equal(v, expected_v)
        assert torch.equal(k[:, SINKS:], expected_k[:, SINKS:])
        assert (k[:, :SINKS] - expected_k[:, :SINKS]).abs().amax((0, 2)).min() > 0.1
    short = examples.prefill(tiny.token_ids(SINKS + WINDOW), method())
    assert examples.state(method().compress(short, seed=0))[2:] == examples.state(short.cache)[2:]


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7)), max_size=8))
def test_sinks_are_those_of_one_turn_however_often_they_were_moved(prompt: int, pattern: list[tuple[int, int]]) -> None:
    """No rounding adds up: the state is that of compressing the committed tokens at once."""
    prefill = examples.prefill(tiny.token_ids(prompt), method())
    full: FullCache = prefill.cache
    moved: KVCache = method().compress(prefill, seed=0)
    for number, (drafted, wanted) in enumerate(pattern):
        committed = min(wanted, drafted + 1)
        examples.append(moved, drafted, seed=number)
        examples.append(full, 7, seed=100 + number)
        full.commit(committed)
        moved.commit(committed, full)
    assert isinstance(moved, ReindexedCache)
    rope = examples.decoder().rope
    at_once = ReindexedCache(full.shape, SINKS, WINDOW, rope).take_prompt(full)

    by_position = [
        [tensor[:, cache.materialize(layer)[2][0].argsort()] for tensor in cache.materialize(layer)]
        for cache in (moved, at_once)
        for layer in range(2)
    ]
    for ours, theirs in zip(by_position[:2], by_position[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert sum(moved.nbytes().values()) == examples.held_bytes(moved)
