"""H2O against brute force: column sums of the whole attention matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.compressors import tiny
from vcbench.compressors.h2o import H2O, AttentionReceived, H2OOptions
from vcbench.engine.model.decoder import Prefill
from vcbench.engine.model.observe import LayerRows

TOKENS = 70


def prefilled(chunk: int, *, zero_queries: bool = False, tokens: int = TOKENS) -> Prefill:
    model = tiny.decoder(zero_queries=zero_queries)
    return model.prefill(tiny.token_ids(tokens), chunk=chunk, statistics=[AttentionReceived()])


def dense_column_sums(tokens: int = TOKENS) -> Tensor:
    """[L, Hk, T], float64."""
    rows: list[tuple[Tensor, Tensor]] = []
    decoder = tiny.decoder()
    cache = decoder.prefill(tiny.token_ids(1), chunk=1).cache
    cache.rewind(0)
    decoder.read_on(cache, tiny.token_ids(tokens), lambda seen: rows.append(copied(seen)))
    return torch.stack([tiny.attention(q, k, 1).unflatten(0, (2, 3)).sum((1, 2)) for q, k in rows])


def copied(rows: LayerRows) -> tuple[Tensor, Tensor]:
    return rows.q.clone(), rows.k.transpose(0, 1).clone()


@pytest.mark.parametrize("chunk", [1, 7, 64, TOKENS])
def test_blockwise_sums_equal_the_dense_matrix(chunk: int) -> None:
    """A-H2O-1 and -2, A-GEN-4: whatever the chunks of the prefill."""
    sums = prefilled(chunk).statistic(AttentionReceived())

    torch.testing.assert_close(sums.double(), dense_column_sums(), rtol=1e-4, atol=1e-5)


def test_sums_are_gathered_later_if_the_prefill_did_not() -> None:
    late = tiny.decoder().prefill(tiny.token_ids(TOKENS), chunk=TOKENS)

    assert torch.equal(late.statistic(AttentionReceived()), prefilled(TOKENS).statistic(AttentionReceived()))


def test_uniform_attention_gives_harmonic_sums() -> None:
    """A-DROP-2: sum over t >= j of 1 / t, here times the three query heads of a group."""
    sums = prefilled(8, zero_queries=True, tokens=8).statistic(AttentionReceived())
    expected = [2.717857, 1.717857, 1.217857, 0.884524, 0.634524, 0.434524, 0.267857, 0.125]

    torch.testing.assert_close(sums / 3, torch.tensor(expected).expand(3, 2, 8), rtol=0, atol=1e-6)


def test_uniform_attention_keeps_the_first_tokens_and_the_recent_ones() -> None:
    """A-H2O-3, which documents the bias towards early tokens."""
    cache = H2O(H2OOptions(factor=5.0)).compress(prefilled(50, zero_queries=True, tokens=50), seed=0)

    assert tiny.positions_of(cache).tolist() == [[[0, 1, 2, 3, 4, 45, 46, 47, 48, 49]] * 2] * 3
    assert cache.tokens == 50


def test_heavy_hitters_are_the_best_by_brute_force() -> None:
    prefill, sums = prefilled(TOKENS), dense_column_sums()
    kept = tiny.positions_of(H2O(H2OOptions(factor=5.0, recent=0.5)).compress(prefill, seed=0))

    for layer in range(3):
        expected = [[*head, *range(63, 70)] for head in tiny.best(sums[layer, :, :63], 7)]
        assert kept[layer].tolist() == expected


@pytest.mark.parametrize("recent", [-0.1, 1.0])
def test_options_out_of_range(recent: float) -> None:
    with pytest.raises(ValueError, match=r"^recent is"):
        H2OOptions(recent=recent)
