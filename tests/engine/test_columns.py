"""Attention gathered by column, kernel and torch form, against brute force in float64."""

from __future__ import annotations

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors.tiny import attention
from vcbench.engine import columns
from vcbench.engine.columns import Reduce, attention_by_column

FORMS = [attention_by_column, columns._by_torch]


def expected(q: Tensor, k: Tensor, visible_first: int, count: int, reduce: Reduce) -> Tensor:
    shares = attention(q, k, visible_first)[..., :count].unflatten(0, (k.shape[0], -1)).flatten(1, 2)
    return shares.amax(1) if reduce == "highest" else shares.sum(1)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.integers(0, 150), st.booleans(), st.integers(0, 99))
def test_both_forms_equal_brute_force(n: int, kv_heads: int, group: int, before: int, tall: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    size = 20 if tall else 16
    q = 2 * torch.randn((n, kv_heads * group, size), generator=generator)
    k = torch.randn((kv_heads, before + n, size), generator=generator)
    count = max(1, before + n // 2)
    for reduce in ("highest", "sum"):
        want = expected(q, k, before + 1, count, reduce)
        for form in FORMS:
            torch.testing.assert_close(form(q, k, before + 1, count, reduce).double(), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduce", ["highest", "sum"])
def test_threads_do_not_change_a_bit(reduce: Reduce) -> None:
    q, k = torch.randn(300, 6, 20), torch.randn(2, 400, 20)
    threads = numba.get_num_threads()
    many = attention_by_column(q, k, 101, 400, reduce)
    try:
        numba.set_num_threads(1)
        assert torch.equal(attention_by_column(q, k, 101, 400, reduce), many)
    finally:
        numba.set_num_threads(threads)


def test_heads_do_not_leak_into_one_another() -> None:
    """A-DROP-4."""
    q, k, order = torch.randn(50, 6, 20), torch.randn(3, 50, 20), torch.tensor([2, 0, 1])
    moved = q.unflatten(1, (3, 2))[:, order].flatten(1, 2)

    found = attention_by_column(q, k, 1, 50, "sum")

    assert torch.equal(attention_by_column(moved, k[order], 1, 50, "sum"), found[order])


def test_large_logits_stay_finite() -> None:
    q, k = 200 * torch.randn(20, 2, 16), 200 * torch.randn(2, 20, 16)
    found = attention_by_column(q, k, 1, 20, "sum")

    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(found.sum(1), torch.full((2,), 20.0), rtol=1e-5, atol=0)
