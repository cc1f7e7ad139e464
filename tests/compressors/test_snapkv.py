"""SnapKV's scores and what it keeps, against brute force."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.compressors import examples, tiny
from vcbench.compressors.base import top_positions
from vcbench.compressors.snapkv import SnapKV, SnapKVOptions, kept_tokens, window_attention
from vcbench.engine.model.decoder import Prefill

TOKENS, WINDOW, HEADS, KV_HEADS, SIZE = 60, 6, 6, 2, 20
GROUP = HEADS // KV_HEADS


def snapshot(*, window: int = WINDOW, zero_queries: bool = False, tokens: int = TOKENS) -> Prefill:
    """Two layers of random keys and the last `window` random queries; shorter windows share their last queries."""
    cache = tiny.random_cache(tokens, kv_heads=KV_HEADS, heads=HEADS)
    queries = torch.randn((2, tokens, HEADS, SIZE), generator=torch.Generator().manual_seed(8))[:, -window:]
    return tiny.prefill_of(cache, torch.zeros_like(queries) if zero_queries else queries)


def snapkv(**options: object) -> SnapKV:
    return SnapKV(SnapKVOptions(**{"window": WINDOW, **options}))


def brute_force(prefill: Prefill, layer: int, kernel: int, pooling: str) -> Tensor:
    """[Hk, T - window], float64, loop by loop."""
    k, _, _ = prefill.cache.materialize(layer)
    shares = tiny.attention(prefill.queries[layer], k, k.shape[1] - WINDOW + 1)
    seen = shares[:, :, : k.shape[1] - WINDOW].sum(1)
    pooled = torch.zeros_like(seen)
    for j in range(seen.shape[1]):
        near = seen[:, max(0, j - kernel // 2) : j + kernel // 2 + 1]
        pooled[:, j] = near.amax(1) if pooling == "max" else near.sum(1) / kernel
    return pooled.view(KV_HEADS, GROUP, -1).mean(1)


@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("pooling", ["average", "max"])
def test_scores_are_those_of_brute_force(pooling: str, kernel: int) -> None:
    """A-DROP-1 and, since the brute force goes head by head before the group's mean, A-SNAP-3."""
    prefill = snapshot()
    for layer in range(2):
        scores = snapkv(kernel=kernel, pooling=pooling).scores(prefill, layer)
        expected = brute_force(prefill, layer, kernel, pooling)
        torch.testing.assert_close(scores[:, :-WINDOW].double(), expected, rtol=1e-5, atol=0)
        assert scores[:, -WINDOW:].isinf().all()


@pytest.mark.parametrize("longer", [WINDOW, 7, 20])
def test_the_window_is_its_own_whatever_others_asked_for(longer: int) -> None:
    """A prompt is prefilled once, with the longest window that any method of the run needs."""
    assert torch.equal(snapkv().scores(snapshot(window=longer), 0), snapkv().scores(snapshot(), 0))


@pytest.mark.parametrize(("tokens", "window", "share"), [(8, 2, 0.267857), (10, 3, 0.336111)])
def test_zero_queries_give_every_token_the_same_share(tokens: int, window: int, share: float) -> None:
    """A-DROP-2: the sum over the window of 1 / (tokens that the query sees), the same for every earlier token."""
    keys = tiny.random_cache(tokens).materialize(0)[0]
    seen = window_attention(torch.zeros(window, HEADS, SIZE), keys, tokens - window)

    torch.testing.assert_close(seen, torch.full((HEADS, tokens - window), share), rtol=1e-5, atol=0)


def test_average_pooling_counts_the_padding() -> None:
    """A-DROP-2: equal scores fall off at the edges with an average, and not with a maximum."""
    prefill = snapshot(zero_queries=True)
    seen = sum(1 / (TOKENS - WINDOW + i) for i in range(1, WINDOW + 1))
    before = TOKENS - WINDOW
    edge = torch.tensor([0.6, 0.8] + [1.0] * (before - 4) + [0.8, 0.6]) * seen

    torch.testing.assert_close(snapkv().scores(prefill, 0)[0, :before], edge, rtol=1e-5, atol=0)
    flat = snapkv(pooling="max").scores(prefill, 0)[0, :before]
    torch.testing.assert_close(flat, torch.full_like(flat, seen), rtol=1e-5, atol=0)


def test_a_dominant_key_lifts_its_neighbours() -> None:
    """A-SNAP-2: with a kernel of 5, two on either side."""
    prefill = snapshot()
    planted = torch.ones(SIZE)
    prefill.cache.store.write(0, 30, 9 * planted.expand(1, KV_HEADS, -1), torch.zeros(1, KV_HEADS, SIZE))
    prefill.queries[0] = planted.expand(WINDOW, HEADS, -1).contiguous()
    scores = snapkv().scores(prefill, 0)[:, : TOKENS - WINDOW]
    best = scores.topk(5, dim=1)

    assert [sorted(row) for row in best.indices.tolist()] == [[28, 29, 30, 31, 32]] * KV_HEADS
    torch.testing.assert_close(best.values, best.values[:, :1].expand(-1, 5), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("tokens", "kept"), [(1, 1), (6, 6), (7, 7), (8, 7), (27, 7), (28, 7), (32, 8), (33, 8), (60, 15), (600, 150)]
)
def test_how_many_tokens_stay(tokens: int, kept: int) -> None:
    """A quarter, but never fewer than the window and one token more."""
    assert kept_tokens(SnapKVOptions(window=WINDOW), tokens) == kept


@pytest.mark.parametrize("tokens", [7, 8, 19, 20, 21, 60])
def test_a_budget_in_tokens_holds_at_any_length(tokens: int) -> None:
    """A-SNAP-1: a prompt within the budget is kept whole."""
    options = SnapKVOptions(window=WINDOW, budget_tokens=20)
    prefill = snapshot(tokens=tokens)
    positions = tiny.positions_of(SnapKV(options).compress(prefill, seed=0))

    assert positions.shape[2] == min(tokens, 20)
    if tokens <= 20:
        assert torch.equal(positions, torch.arange(tokens).expand(2, KV_HEADS, -1))


def test_the_best_and_the_window_stay() -> None:
    prefill = snapshot()
    positions = tiny.positions_of(snapkv(factor=3.0).compress(prefill, seed=0))
    for layer in range(2):
        expected = tiny.best(brute_force(prefill, layer, 5, "average"), 20 - WINDOW)
        window = list(range(TOKENS - WINDOW, TOKENS))
        assert positions[layer].tolist() == [row + window for row in expected]


def test_permuted_heads_keep_permuted_positions() -> None:
    """A-DROP-4: no head's scores reach another's."""
    prefill = snapshot()
    k, v = (torch.stack([prefill.cache.materialize(layer)[i] for layer in range(2)]) for i in (0, 1))
    order = torch.tensor([1, 0])
    queries = torch.stack(prefill.queries).unflatten(2, (KV_HEADS, GROUP))[:, :, order].flatten(2, 3)
    swapped = tiny.prefill_of(tiny.full_cache(k[:, order], v[:, order], heads=HEADS), queries)
    ours, theirs = (tiny.positions_of(snapkv().compress(p, seed=0)) for p in (prefill, swapped))

    assert torch.equal(theirs, ours[:, order])
    assert not torch.equal(ours[:, 0], ours[:, 1])


@pytest.mark.parametrize("count", [1, 7, 20])
def test_ties_keep_just_the_budget_and_the_later_tokens(count: int) -> None:
    """A-DROP-3."""
    assert top_positions(torch.zeros(2, 20), count).tolist() == [list(range(20 - count, 20))] * 2


def test_top_positions_are_those_of_brute_force() -> None:
    scores = torch.randint(0, 4, (5, 40), generator=torch.Generator().manual_seed(2)).float()
    scores[0, 3] = float("inf")

    assert top_positions(scores, 11).tolist() == tiny.best(scores, 11)


def test_the_position_of_the_next_token_is_the_true_one() -> None:
    """A-DROP-6."""
    prefill = examples.prefill(tiny.token_ids(90), snapkv())
    cache = snapkv().compress(prefill, seed=0)
    examples.append(cache, 2, seed=1)
    cache.commit(2)

    assert cache.tokens == 92
    assert cache.materialize(0)[2][:, -2:].tolist() == [[90, 91]] * KV_HEADS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 1.0}, "factor is 1.0; give how many times smaller"),
        ({"window": 0}, "window is 0; give at least 1"),
        ({"kernel": 4}, "kernel is 4; give an odd number"),
        ({"kernel": -1}, "kernel is -1"),
        ({"window": 32, "budget_tokens": 32}, "budget_tokens is 32; give more than the window of 32"),
    ],
)
def test_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SnapKVOptions(**options)
