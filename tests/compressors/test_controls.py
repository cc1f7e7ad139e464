"""int8, and the controls that bound every other method: nothing compressed, and nothing but noise."""

from __future__ import annotations

import pytest
import torch

from tests.compressors import examples, tiny
from vcbench.compressors.int8 import Int8, Int8Options
from vcbench.compressors.none import NoCompression, NoneOptions
from vcbench.compressors.random import RandomKV, RandomOptions, noise_entries

TOKENS = 100


def test_int8_is_within_half_a_step_of_every_head_of_every_token() -> None:
    full = tiny.random_cache(TOKENS)
    cache = Int8(Int8Options()).compress(tiny.prefill_of(full), seed=0)
    for layer in range(2):
        for ours, exact in zip(cache.materialize(layer)[:2], full.materialize(layer)[:2], strict=True):
            step = exact.abs().amax(-1, keepdim=True) / 127
            error = (ours - exact).abs()
            assert (error <= step * 0.57).all()
            assert (error > 0).float().mean() > 0.9


def test_int8_tokens_are_quantised_as_soon_as_they_are_committed() -> None:
    full = tiny.random_cache(TOKENS)
    cache = Int8(Int8Options()).compress(tiny.prefill_of(full), seed=0)
    examples.append(cache, 1, seed=1)
    exact = cache.materialize(0)[0][:, -1].clone()
    cache.commit(1)
    coded = cache.materialize(0)[0][:, -1]

    assert not torch.equal(coded, exact)
    torch.testing.assert_close(coded, exact, rtol=0, atol=0.02)


def test_int8_bytes_an_element() -> None:
    """A byte a value and two for each head's scale."""
    full = tiny.random_cache(128)
    held = Int8(Int8Options()).compress(tiny.prefill_of(full), seed=0).nbytes()
    heads = 128 * 2 * 2

    assert held["steps"] == 2 * heads * 2
    assert held["minima"] == 0
    # Values are padded to whole vectors of 16.
    assert held["codes"] == heads * (20 + 32)


def test_no_compression_holds_the_full_caches_entries_and_attends_alike() -> None:
    full = tiny.random_cache(TOKENS)
    cache = NoCompression(NoneOptions()).compress(tiny.prefill_of(full), seed=0)

    assert torch.equal(examples.attended(cache), examples.attended(full))
    for layer in range(2):
        for ours, exact in zip(cache.materialize(layer), full.materialize(layer), strict=True):
            assert torch.equal(ours, exact)


def test_noise_is_as_large_as_what_it_replaces_and_unrelated_to_it() -> None:
    full = tiny.random_cache(2000)
    full.store.write(1, 0, *(3 * x.transpose(0, 1) for x in full.materialize(1)[:2]))
    cache = RandomKV(RandomOptions(keep=1.0)).compress(tiny.prefill_of(full), seed=5)
    for layer in range(2):
        for ours, exact in zip(cache.materialize(layer)[:2], full.materialize(layer)[:2], strict=True):
            assert ours.pow(2).mean().item() == pytest.approx(exact.pow(2).mean().item(), rel=0.02)
            correlation = torch.corrcoef(torch.stack([ours.flatten(), exact.flatten()]))[0, 1]
            assert abs(correlation) < 0.02


def test_noise_depends_on_the_seed_alone() -> None:
    full = tiny.random_cache(TOKENS)
    torch.manual_seed(1)
    first = RandomKV(RandomOptions()).compress(tiny.prefill_of(full), seed=5)
    torch.manual_seed(2)
    again, other = (RandomKV(RandomOptions()).compress(tiny.prefill_of(full), seed=seed) for seed in (5, 6))

    assert examples.state(again) == examples.state(first)
    assert examples.state(other) != examples.state(first)


@pytest.mark.parametrize(("keep", "tokens", "count"), [(0.25, 100, 25), (0.25, 1, 1), (0.001, 100, 1), (1.0, 7, 7)])
def test_how_much_noise(keep: float, tokens: int, count: int) -> None:
    assert noise_entries(RandomOptions(keep=keep), tokens) == count


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_is_above_0_and_at_most_1(keep: float) -> None:
    with pytest.raises(ValueError, match="give a share above 0 and at most 1"):
        RandomOptions(keep=keep)
