"""Exact stores: what is written is read, attention is right, and a row depends on what it sees alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.engine.reference import attention, draw, shape_of
from vcbench.engine.attention.readers import attend_entries
from vcbench.engine.kv.disk import DiskTier
from vcbench.engine.kv.make import make_store
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.kv.store import ExactStore
from vcbench.engine.kv.tensors import TensorStore

Make = Callable[[KVShape], ExactStore]
STORES: list[Make] = [PagedStore, TensorStore, DiskTier().store]
HEADS = [(20, 4, 2), (64, 9, 3), (128, 4, 1), (16, 4, 4), (80, 5, 1), (32, 40, 8)]
LENGTHS = [(1, 1), (1, 8), (2, 1), (63, 2), (64, 1), (65, 3), (128, 25), (255, 1), (256, 1), (257, 2), (300, 41)]


@pytest.fixture(params=STORES, ids=lambda store: store.__name__)
def kind(request: pytest.FixtureRequest) -> Make:
    store: Make = request.param
    return store


def filled(kind: Make, shape: KVShape, entries: int) -> ExactStore:
    """A store whose layers differ, written in pieces."""
    store, start = kind(shape), 0
    for size in (1, 62, 3, 1000):
        count = min(size, entries - start)
        for layer in range(shape.n_layers):
            k, v = (draw(entries, shape.n_kv_heads, shape.head_dim, seed=2 * layer + i) for i in (0, 1))
            store.write(layer, start, k[start : start + count], v[start : start + count])
        start += count
    return store


def written(shape: KVShape, entries: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k, v: [Hk, entries, D] as `filled` wrote them."""
    k, v = (draw(entries, shape.n_kv_heads, shape.head_dim, seed=2 * layer + i) for i in (0, 1))
    return k.transpose(0, 1), v.transpose(0, 1)


@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), HEADS)
def test_what_is_written_is_read(kind: Make, head_dim: int, heads: int, kv_heads: int) -> None:
    shape = shape_of(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    store = filled(kind, shape, 130)
    entries = torch.stack(
        [torch.randperm(130, generator=torch.Generator().manual_seed(h))[:9] for h in range(kv_heads)]
    )
    for layer in range(2):
        k, v = written(shape, 130, layer)
        for ours, expected in zip(store.read_range(layer, 0, 130), (k, v), strict=True):
            assert torch.equal(ours, expected)
        for ours, expected in zip(store.read(layer, entries), (k, v), strict=True):
            assert torch.equal(ours, torch.stack([expected[h, entries[h]] for h in range(kv_heads)]))


@pytest.mark.parametrize(("visible", "rows"), LENGTHS)
@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), HEADS)
def test_attention_is_that_of_the_formula(
    kind: Make, head_dim: int, heads: int, kv_heads: int, visible: int, rows: int
) -> None:
    shape = shape_of(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    entries = visible + rows - 1
    store = filled(kind, shape, entries)
    q = 3 * draw(rows, heads, head_dim, seed=9)
    together = attend_entries(store, 1, q, visible)

    torch.testing.assert_close(together.double(), attention(q, *written(shape, entries, 1), visible), rtol=0, atol=1e-5)
    alone = [attend_entries(store, 1, q[i : i + 1].contiguous(), visible + i) for i in range(rows)]
    assert torch.equal(torch.cat(alone), together)


def test_large_scores_do_not_overflow(kind: Make) -> None:
    shape = shape_of()
    store = filled(kind, shape, 200)
    q = 200 * draw(3, 4, 32, seed=9)
    expected = attention(q, *written(shape, 200, 0), 198)

    torch.testing.assert_close(attend_entries(store, 0, q, 198).double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("part", ["keys", "values", "both"])
@pytest.mark.parametrize("visible", [1, 60, 64, 250, 256])
def test_what_a_row_does_not_see_cannot_reach_it(kind: Make, visible: int, part: str) -> None:
    """Not even if it is NaN: the entries of later draft tokens and what a rejected draft left behind."""
    shape = shape_of()
    store = filled(kind, shape, 300)
    q = draw(3, 4, 32, seed=9)
    clean = attend_entries(store, 0, q, visible)
    k, v = (x[:, visible + 1 :].transpose(0, 1).clone() for x in written(shape, 300, 0))
    for x in [k] * (part != "values") + [v] * (part != "keys"):
        x[:] = float("nan")
    store.write(0, visible + 1, k, v)
    after = attend_entries(store, 0, q, visible)

    assert torch.equal(after[:2], clean[:2])
    assert after[2].isnan().all()


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 70, 269])
@pytest.mark.parametrize("part", [0, 1], ids=["key", "value"])
def test_a_fault_in_what_a_row_sees_is_not_hidden(kind: Make, fault: float, place: int, part: int) -> None:
    shape = shape_of()
    store = filled(kind, shape, 270)
    entry = [x[:, place : place + 1].transpose(0, 1).clone() for x in written(shape, 270, 0)]
    entry[part][:] = fault
    store.write(0, place, *entry)

    assert not attend_entries(store, 0, draw(1, 4, 32, seed=9), 270).isfinite().any()


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_one_channel_that_is_not_finite_is_not_hidden_and_cannot_reach_others(kind: Make, fault: float) -> None:
    """One number of a value vector: rows that see it show it in that channel, those before it are as they were."""
    shape, place = shape_of(), 70
    store = filled(kind, shape, 270)
    q = draw(2, 4, 32, seed=9)
    clean = attend_entries(store, 0, q, place)
    k, v = (x[:, place : place + 1].transpose(0, 1).clone() for x in written(shape, 270, 0))
    v[..., 5] = fault
    store.write(0, place, k, v)
    after = attend_entries(store, 0, q, place)

    assert torch.equal(after[0], clean[0])
    assert not after[1, :, 5].isfinite().any()


def test_a_released_store_holds_what_is_left(kind: Make) -> None:
    shape = shape_of()
    store = filled(kind, shape, 300)
    before = store.nbytes()
    store.release(70)

    assert store.nbytes() < before
    assert torch.equal(store.read_range(1, 0, 70)[1], written(shape, 300, 1)[1][:, :70])
    store.write(1, 70, draw(300, 2, 32), draw(300, 2, 32))
    assert torch.equal(store.read_range(1, 70, 370)[0], draw(300, 2, 32).transpose(0, 1))


def test_dropping_the_front_moves_entries_down(kind: Make) -> None:
    shape = shape_of()
    store = filled(kind, shape, 300)
    before = store.nbytes()
    store.drop_front(128)

    assert store.nbytes() < before
    assert torch.equal(store.read_range(1, 0, 172)[0], written(shape, 300, 1)[0][:, 128:])


def test_stores_copy_from_one_another(kind: Make) -> None:
    shape = shape_of()
    source, target = filled(PagedStore, shape, 100), filled(kind, shape, 10)
    target.copy_from(source, 30, 5, 70)
    for layer in range(2):
        assert torch.equal(target.read_range(layer, 5, 75)[1], written(shape, 100, layer)[1][:, 30:])
        assert torch.equal(target.read_range(layer, 0, 5)[1], written(shape, 10, layer)[1][:, :5])


def test_pages_refuse_entries_that_they_do_not_hold() -> None:
    store = filled(PagedStore, shape_of(), 64)

    with pytest.raises(IndexError, match="entry 64 of a store that holds 64"):
        store.read_range(0, 60, 65)
    with pytest.raises(IndexError, match="entry 65 of a store that holds 64"):
        attend_entries(store, 0, draw(2, 4, 32), 65)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float32, PagedStore), (torch.bfloat16, TensorStore), (torch.float16, TensorStore)]
)
def test_the_store_follows_the_precision(dtype: torch.dtype, expected: Make) -> None:
    store = make_store(shape_of(dtype=dtype))
    assert type(store) is expected
    store.reserve(1)
    assert all(tensor.dtype == dtype for tensor in store.tensors())
