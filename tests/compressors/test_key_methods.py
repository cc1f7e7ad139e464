"""Knorm and KeyDiff, which look at keys alone, and what all budget methods share."""

from __future__ import annotations

import pytest
import torch

from tests.compressors import tiny
from vcbench.compressors.base import BudgetOptions
from vcbench.compressors.keydiff import KeyDiff, KeyDiffOptions
from vcbench.compressors.knorm import Knorm, KnormOptions

METHODS = [KeyDiff(KeyDiffOptions(factor=3.0)), Knorm(KnormOptions(factor=3.0))]


@pytest.mark.acceptance("A-DROP-1")
def test_knorm_scores_are_negative_norms() -> None:
    cache = tiny.random_cache(50)
    k = cache.materialize(1)[0].double()

    scores = Knorm(KnormOptions()).scores(tiny.prefill_of(cache), 1)

    torch.testing.assert_close(scores.double(), -k.pow(2).sum(-1).sqrt(), rtol=1e-5, atol=0)


@pytest.mark.acceptance("A-DROP-1")
def test_keydiff_scores_are_negative_cosines_to_the_mean_direction() -> None:
    cache = tiny.random_cache(50)
    k = cache.materialize(1)[0].double()
    anchor = (k / k.norm(dim=-1, keepdim=True)).mean(1, keepdim=True)
    expected = -(k * anchor).sum(-1) / (k.norm(dim=-1) * anchor.norm(dim=-1))

    scores = KeyDiff(KeyDiffOptions()).scores(tiny.prefill_of(cache), 1)

    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.acceptance("A-DROP-5", "A-DROP-6")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_what_is_kept(method: KeyDiff | Knorm) -> None:
    """The best scores of each head by brute force; A-DROP-5 equal counts; A-DROP-6 the true length."""
    prefill = tiny.prefill_of(tiny.random_cache(61))

    cache = method.compress(prefill, seed=0)

    kept = tiny.positions_of(cache)
    assert [layer.tolist() for layer in kept] == [tiny.best(method.scores(prefill, layer), 20) for layer in (0, 1)]
    assert (cache.tokens, cache.committed) == (61, 61)


@pytest.mark.acceptance("A-DROP-3")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_ties_keep_exactly_the_budget(method: KeyDiff | Knorm) -> None:
    """A-DROP-3: the later of equal scores stay."""
    same = torch.ones(2, 2, 30, 20)

    kept = tiny.positions_of(method.compress(tiny.prefill_of(tiny.full_cache(same)), seed=0))

    assert kept.tolist() == [[list(range(20, 30))] * 2] * 2


@pytest.mark.acceptance("A-DROP-4")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_heads_swapped_in_heads_swapped_out(method: KeyDiff | Knorm) -> None:
    keys = torch.randn((2, 2, 40, 20), generator=torch.Generator().manual_seed(1))
    kept, swapped = (
        tiny.positions_of(method.compress(tiny.prefill_of(tiny.full_cache(k)), seed=0)) for k in (keys, keys.flip(1))
    )

    assert torch.equal(swapped, kept.flip(1))
    assert not torch.equal(kept[:, 0], kept[:, 1])


@pytest.mark.parametrize(("tokens", "kept"), [(1, 1), (2, 1), (3, 1), (7, 2), (400, 100)])
def test_budget_of_a_share(tokens: int, kept: int) -> None:
    assert BudgetOptions(factor=4.0).kept_tokens(tokens) == kept


@pytest.mark.parametrize(("tokens", "kept"), [(1, 1), (9, 9), (10, 10), (400, 10)])
def test_budget_of_a_number(tokens: int, kept: int) -> None:
    assert BudgetOptions(budget_tokens=10).kept_tokens(tokens) == kept


@pytest.mark.parametrize("values", [{"factor": 1.0}, {"factor": float("nan")}, {"budget_tokens": 0}])
def test_budgets_out_of_range(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(values))} is"):
        BudgetOptions(**values)  # type: ignore[arg-type]
