"""PyramidKV: how the budget falls, and SnapKV's scores below it."""

from __future__ import annotations

import pytest
import torch

from tests.compressors import tiny
from vcbench.compressors.pyramidkv import PyramidKV, PyramidKVOptions, layer_budgets
from vcbench.compressors.snapkv import SnapKV, SnapKVOptions


def test_budgets_are_the_papers_and_their_mean_is_exact() -> None:
    """Capacity 1,024 with a window of 32 in 32 layers: from 1,934 to 50 besides the window, 992 on average."""
    budgets = layer_budgets(PyramidKVOptions(budget_tokens=1024, window=32), 32, 10_000)

    assert (budgets[0] - 32, budgets[-1] - 32) == (1934, 50)
    assert sum(budgets) == 32 * 1024
    assert budgets == sorted(budgets, reverse=True)


def test_beta_of_one_is_snapkv() -> None:
    assert layer_budgets(PyramidKVOptions(factor=4.0, beta=1.0), 5, 400) == [100] * 5


@pytest.mark.parametrize("tokens", [1, 32, 33, 34, 50, 60])
def test_short_prompts(tokens: int) -> None:
    budgets = layer_budgets(PyramidKVOptions(), 4, tokens)

    assert max(budgets) <= tokens
    assert min(budgets) >= min(tokens, 32)


def test_each_layer_keeps_snapkvs_best() -> None:
    queries = torch.randn((2, 8, 6, 20), generator=torch.Generator().manual_seed(1))
    prefill, o = tiny.prefill_of(tiny.random_cache(120), queries), PyramidKVOptions(factor=3.0, window=8)
    budgets = layer_budgets(o, 2, 120)

    cache = PyramidKV(o).compress(prefill, seed=0)

    assert budgets[0] > budgets[1]
    for layer in range(2):
        scores = SnapKV(SnapKVOptions(window=8)).scores(prefill, layer)
        assert cache.materialize(layer)[2].tolist() == tiny.best(scores, budgets[layer])
    assert cache.tokens == 120


def test_bytes_follow_the_budgets() -> None:
    queries = torch.randn(2, 8, 6, 20)
    o = PyramidKVOptions(factor=4.0, window=8)
    cache = PyramidKV(o).compress(tiny.prefill_of(tiny.random_cache(2000), queries), seed=0)
    entries = sum(layer_budgets(o, 2, 2000)) * 2

    assert cache.nbytes()["positions"] == 4 * entries
    assert cache.nbytes()["kept"] == 2 * 20 * 4 * entries


def test_options_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"^beta is"):
        PyramidKVOptions(beta=0.5)
