"""TOVA against brute force."""

from __future__ import annotations

import pytest
import torch

from tests.compressors import tiny
from vcbench.compressors.tova import TOVA, TOVAOptions


@pytest.mark.acceptance("A-DROP-1")
def test_scores_are_the_last_querys_attention_averaged_over_all_heads() -> None:
    """A-DROP-1; a longer window, gathered for another method of the plan, changes nothing."""
    cache = tiny.random_cache(40)
    queries = torch.randn((2, 5, 6, 20), generator=torch.Generator().manual_seed(2))
    k = cache.materialize(1)[0]
    expected = tiny.attention(queries[1, -1:], k, 40).mean((0, 1))[:39]

    scores = TOVA(TOVAOptions()).scores(tiny.prefill_of(cache, queries), 1)

    torch.testing.assert_close(scores[0, :39].double(), expected, rtol=1e-5, atol=1e-8)
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(TOVA(TOVAOptions()).scores(tiny.prefill_of(cache, queries[:, -1:]), 1), scores)


@pytest.mark.acceptance("A-DROP-2", "A-DROP-3")
def test_uniform_attention_scores_all_tokens_equally() -> None:
    """A-DROP-2; and A-DROP-3: of equal scores the later stay, the last token among them."""
    prefill = tiny.prefill_of(tiny.random_cache(40), torch.zeros(2, 1, 6, 20))
    method = TOVA(TOVAOptions(factor=4.0))

    torch.testing.assert_close(method.scores(prefill, 0)[:, :39], torch.full((2, 39), 1 / 40))
    assert tiny.positions_of(method.compress(prefill, seed=0)).tolist() == [[list(range(30, 40))] * 2] * 2


@pytest.mark.acceptance("A-DROP-5")
def test_heads_of_a_layer_keep_the_same_tokens() -> None:
    queries = torch.randn((2, 1, 6, 20), generator=torch.Generator().manual_seed(3))
    kept = tiny.positions_of(TOVA(TOVAOptions()).compress(tiny.prefill_of(tiny.random_cache(80), queries), seed=0))

    assert torch.equal(kept[:, 0], kept[:, 1])
    assert kept[:, :, -1].eq(79).all()
    assert not torch.equal(kept[0], kept[1])


def test_a_prompt_of_one_token_is_kept() -> None:
    prefill = tiny.prefill_of(tiny.random_cache(1), torch.zeros(2, 1, 6, 20))

    assert tiny.positions_of(TOVA(TOVAOptions()).compress(prefill, seed=0)).tolist() == [[[0]] * 2] * 2
