"""Attention gathered by column, kernel and torch form, against brute force in float64."""

from __future__ import annotations

from itertools import pairwise

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors import tiny
from vcbench.engine.attention.key_shares import Columns, Range, Reduce, attention_by_column
from vcbench.engine.kv.stores import ExactStore, PagedStore, TensorStore

STORES = [PagedStore, TensorStore]


def stored(k: Tensor, heads: int, kind: type[ExactStore] = PagedStore, v: Tensor | None = None) -> ExactStore:
    """Keys and values [Hk, N, D] as the entries of a store of one layer; values are the keys if not given."""
    store = kind(tiny.shape(layers=1, heads=heads, kv_heads=k.shape[0], size=k.shape[2]))
    store.write(0, 0, k.transpose(0, 1), (k if v is None else v).transpose(0, 1))
    return store


def causal(store: ExactStore, n: int, entries: int, reduce: Reduce, wanted: Range | None = None) -> Columns:
    """The last n of `entries` as rows that meet all before them."""
    whole = (0, entries)
    return Columns(
        store=store, layer=0, first_visible=entries - n + 1, seen=[whole], wanted=wanted or whole, reduce=reduce
    )


def expected(q: Tensor, k: Tensor, columns: Columns, weights: Tensor) -> Tensor:
    """[H, wanted], float64."""
    n, heads, size = q.shape
    wide = k.double().repeat_interleave(heads // k.shape[0], 0)
    logits = torch.einsum("nhd,hjd->hnj", q.double(), wide) / size**0.5
    entries = torch.arange(k.shape[1])
    met = torch.zeros(k.shape[1], dtype=torch.bool)
    for span in columns.seen:
        met[slice(*span)] = True
    hidden = ~met | (entries >= (columns.first_visible + torch.arange(n))[:, None])
    shares = torch.softmax(logits.masked_fill(hidden, float("-inf")), dim=-1) * weights.double()[:, None]
    shares = shares[..., slice(*columns.wanted)]
    return shares.amax(1) if columns.reduce == "highest" else shares.sum(1)


@given(
    st.integers(1, 70), st.integers(1, 3), st.sampled_from([1, 2, 3, 50]), st.integers(0, 200), st.booleans(),
    st.data(), st.integers(0, 99),
)  # fmt: skip
def test_both_forms_equal_brute_force(
    n: int, kv_heads: int, group: int, before: int, tall: bool, data: st.DataObject, seed: int
) -> None:
    """A-DROP-1. Ranges are drawn, so that pages are cut anywhere, even twice."""
    generator = torch.Generator().manual_seed(seed)
    size = 20 if tall else 16
    q = 2 * torch.randn((n, kv_heads * group, size), generator=generator)
    k, v = torch.randn((2, kv_heads, before + n, size), generator=generator)
    weights = torch.rand(n, generator=generator) + 0.5
    cuts = sorted(data.draw(st.sets(st.integers(0, before), max_size=5)))
    ranges = [*list(pairwise(cuts))[::2], (before, before + n)]
    first, stop = data.draw(st.sampled_from(ranges))
    wanted = (data.draw(st.integers(first, stop - 1)), stop)
    for reduce in ("highest", "sum"):
        for kind in STORES:
            store = stored(k, q.shape[1], kind, v)
            columns = Columns(
                store=store, layer=0, first_visible=before + 1, seen=ranges, wanted=wanted, reduce=reduce
            )  # fmt: skip
            found, mixed = attention_by_column(q, columns, weights, attend=True)
            want = expected(q, k, columns, weights)
            torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-7)
            assert torch.equal(attention_by_column(q, columns, weights)[0], found)
            assert (mixed is None) == (kind is TensorStore)
            if mixed is not None:
                torch.testing.assert_close(mixed, store.attend(0, q, before + 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", ["highest", "sum"])
def test_threads_do_not_change_a_bit(reduce: Reduce) -> None:
    q, k = torch.randn(300, 6, 20), torch.randn(2, 400, 20)
    columns = causal(stored(k, 6), 300, 400, reduce)
    threads = numba.get_num_threads()
    many = attention_by_column(q, columns, attend=True)
    try:
        numba.set_num_threads(1)
        alone = attention_by_column(q, columns, attend=True)
    finally:
        numba.set_num_threads(threads)
    assert many[1] is not None
    assert alone[1] is not None
    assert torch.equal(alone[0], many[0])
    assert torch.equal(alone[1], many[1])


def test_heads_do_not_leak_into_one_another() -> None:
    """A-DROP-4."""
    q, k, order = torch.randn(50, 6, 20), torch.randn(3, 50, 20), torch.tensor([2, 0, 1])
    moved = q.unflatten(1, (3, 2))[:, order].flatten(1, 2)

    found, _ = attention_by_column(q, causal(stored(k, 6), 50, 50, "sum"))
    other, _ = attention_by_column(moved, causal(stored(k[order], 6), 50, 50, "sum"))

    assert torch.equal(other.unflatten(0, (3, 2)), found.unflatten(0, (3, 2))[order])


def test_large_logits_stay_finite() -> None:
    q, k = 200 * torch.randn(20, 2, 16), 200 * torch.randn(2, 20, 16)
    found, mixed = attention_by_column(q, causal(stored(k, 2), 20, 20, "sum"), attend=True)

    assert mixed is not None
    assert bool(torch.isfinite(found).all())
    assert bool(torch.isfinite(mixed).all())
    torch.testing.assert_close(found.sum(1), torch.full((2,), 20.0), rtol=1e-5, atol=0)


def test_entries_beyond_a_rows_own_reach_nothing() -> None:
    """A later key or value may be anything, NaN too, as in pages that held other tokens before."""
    q, k = torch.randn(9, 2, 16), torch.randn(2, 79, 16)
    clean = attention_by_column(q, causal(stored(k[:, :77], 2), 9, 77, "highest"), attend=True)
    k[:, 77:] = float("nan")
    dirty = attention_by_column(q, causal(stored(k, 2), 9, 77, "highest"), attend=True)

    assert clean[1] is not None
    assert dirty[1] is not None
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])
