"""The full cache in a file: same bits as in memory, two layers in memory, bytes by tier, and what a full disk does."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.compressors.examples import make
from tests.engine import tiny
from tests.engine.cells import METHODS, batch, check_same, full_outputs, prefilled, request
from tests.engine.decoding.setups import cell
from tests.engine.reference import draw, shape_of
from vcbench.config.sampling import Sampling
from vcbench.config.schema import AdaptiveDraft, DraftLength
from vcbench.engine.attention.readers import attend_entries
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.session import run_cell
from vcbench.engine.kv.disk import DiskStore
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import BatchTiming, Generation
from vcbench.errors import StorageError

DEEP = replace(tiny.ARCHITECTURE, n_layers=5)


def deep(decoder: Decoder, count: int) -> Prefilled:
    """A prompt on a decoder that calibrated methods do not know."""
    wanted = request(tiny.token_ids(count, seed=count), str(count))
    return Prefilled(wanted, decoder.prefill(wanted.prompt_ids, chunk=64, query_window=32))


def decode(
    items: Sequence[Prefilled], name: str, draft_length: DraftLength = 5, *, decoder: Decoder | None = None
) -> tuple[list[Generation], BatchTiming]:
    """The generations of a VeriCache cell whose full caches lie on disk."""
    ended: dict[str, Generation] = {}
    setup = cell("vericache", make(METHODS[name]), draft_length, seed=11, full_cache="disk")
    timing = run_cell(decoder or tiny.decoder(), setup, items, on_end=lambda g: ended.__setitem__(g.request_id, g))
    return [ended[item.request.id] for item in items], timing


@pytest.mark.parametrize("draft_length", [6, AdaptiveDraft()], ids=["six", "auto"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_stays_bitwise(name: str, draft_length: DraftLength) -> None:
    items = batch("ragged", tiny.decoder())
    ours, _ = decode(items, name, draft_length)
    for done, full in zip(ours, full_outputs("ragged", tiny.decoder()), strict=True):
        check_same(done, full)


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_any_number_of_layers(layers: int) -> None:
    """One and two layers never leave their buffers; of an odd number the last and the first share one."""
    architecture = replace(tiny.ARCHITECTURE, n_layers=layers)
    decoder = tiny.fresh_decoder(architecture)
    items = [deep(decoder, n) for n in (60, 130)]
    ours, _ = decode(items, "snapkv", decoder=decoder)
    for done, full in zip(ours, full_outputs_of(items, decoder), strict=True):
        check_same(done, full)


def full_outputs_of(items: Sequence[Prefilled], decoder: Decoder) -> list[Generation]:
    ended: list[Generation] = []
    for item in items:
        run_cell(decoder, cell("full"), [item], on_end=ended.append)
    return ended


def test_sampled_outputs_stay_bitwise() -> None:
    wanted = replace(request(tiny.token_ids(60)), sampling=Sampling(temperature=0.9, top_k=20, seed=3))
    item = prefilled(wanted)
    (ours,), _ = decode([item], "kivi")
    check_same(ours, full_outputs_of([item], tiny.decoder())[0])


def test_the_snapshot_is_left_as_found() -> None:
    item = prefilled(request(tiny.token_ids(70)))
    store = item.prefill.cache.store
    before = [x.clone() for layer in range(2) for x in store.read_range(layer, 0, 70)]
    decode([item], "kivi")

    assert item.prefill.cache.store is store
    assert item.prefill.cache.tokens == 70
    after = [x for layer in range(2) for x in store.read_range(layer, 0, 70)]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_bytes_by_tier() -> None:
    """In a file all layers, in memory two of five; what is resident counts memory alone."""
    decoder = tiny.fresh_decoder(DEEP)
    item = deep(decoder, 130)
    (done,), timing = decode([item], "snapkv", decoder=decoder)
    store = item.prefill.cache.store
    for held in (done.kv_start, done.kv_end):
        assert held is not None
        pages = -(-(130 + item.request.max_tokens) // 64)
        layer = 2 * 2 * 32 * 64 * 4 * pages
        assert held.full_copy == {"memory": 2 * layer, "disk": 5 * layer}
        assert held.resident == held.stored + 2 * layer
    assert isinstance(store, PagedStore)
    assert timing.offload_s > 0


def test_memory_alone_has_one_tier_and_other_arms_none() -> None:
    item = prefilled(request(tiny.token_ids(70)))
    ended: list[Generation] = []
    for arm, compressor in (("full", None), ("vericache", make(METHODS["snapkv"]))):
        setup = cell(arm, compressor, 4)  # type: ignore[arg-type]
        run_cell(tiny.decoder(), setup, [item], on_end=ended.append)
    full, ours = (done.kv_end for done in ended)
    assert full is not None
    assert full.full_copy == {}
    assert ours is not None
    assert set(ours.full_copy) == {"memory"}
    assert ours.resident == ours.stored + ours.full_copy["memory"]


@given(
    steps=st.lists(
        st.tuples(st.permutations(range(3)), st.integers(0, 200), st.integers(0, 90)), min_size=1, max_size=8
    ),
    seed=st.integers(0, 99),
)
def test_any_order_of_writing_and_reading_is_that_of_memory(steps: list[tuple[list[int], int, int]], seed: int) -> None:
    shape = replace(shape_of(), n_layers=3)
    ours, memory, held = DiskStore(shape, entries=64), PagedStore(shape), 0
    for number, (layers, start, count) in enumerate(steps):
        start, q = min(start, held), draw(1, 4, 32, seed=number)
        held = max(held, start + count)
        for layer in layers:
            k, v = (draw(count, 2, 32, seed=seed + 6 * number + 2 * layer + i) for i in (0, 1))
            for store in (ours, memory):
                store.write(layer, start, k, v)
            if held:
                assert torch.equal(attend_entries(ours, layer, q, held), attend_entries(memory, layer, q, held))
    for layer in range(3):
        for a, b in zip(ours.read_range(layer, 0, held), memory.read_range(layer, 0, held), strict=True):
            assert torch.equal(a, b)


def test_the_file_has_no_name(tmp_path: Path) -> None:
    store = DiskStore(shape_of(), tmp_path, 100)
    store.write(0, 0, draw(100, 2, 32), draw(100, 2, 32))
    assert store.disk_bytes() > 0
    assert list(tmp_path.iterdir()) == []


def test_entries_that_it_does_not_hold_are_refused() -> None:
    store = DiskStore(shape_of(), entries=64)
    with pytest.raises(IndexError, match="entry 64 of a store that holds 64"):
        store.read_range(0, 60, 65)


def test_a_place_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be kept in .*: No such file or directory; free space there, name"):
        DiskStore(shape_of(), tmp_path / "nowhere")


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_disk_that_fails_ends_the_cell_with_a_message(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the fault happens while a layer is read ahead."""
    decoder = tiny.fresh_decoder(DEEP)
    item = deep(decoder, 70)
    honest, calls = getattr(os, call), [0]

    def failing(*arguments: Any) -> int:
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(honest(*arguments))

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StorageError, match="No space left on device; free space there"):
        decode([item], "kivi", decoder=decoder)


def test_a_file_that_was_cut_is_no_answer(tmp_path: Path) -> None:
    shape = replace(shape_of(), n_layers=5)
    store = DiskStore(shape, tmp_path, 100)
    for layer in range(5):
        store.write(layer, 0, draw(100, 2, 32), draw(100, 2, 32))
    os.ftruncate(store._file, 1000)
    with pytest.raises(StorageError, match="bytes went through"):
        attend_entries(store, 0, draw(1, 4, 32), 100)


def test_what_is_read_ahead_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that comes in late must not fall on entries that were written meanwhile."""
    shape = replace(shape_of(), n_layers=4)
    memory, disk = PagedStore(shape), DiskStore(shape)
    real = os.preadv

    def late(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        if not threading.current_thread().name.startswith("vcbench-disk"):
            return real(descriptor, buffers, offset)
        held = [bytearray(len(buffer)) for buffer in buffers]
        count = real(descriptor, held, offset)
        time.sleep(0.05)
        for buffer, read in zip(buffers, held, strict=True):
            buffer[:] = read
        return count

    monkeypatch.setattr("vcbench.engine.kv.disk.os.preadv", late)
    heads, width = shape.n_kv_heads, shape.head_dim
    for start in range(0, 120, 40):
        for store in (memory, disk):
            for layer in range(shape.n_layers):
                k, v = (draw(40, heads, width, seed=7 * start + layer + part) for part in (0, 1000))
                store.write(layer, start, k, v)
        q = draw(1, shape.n_heads, width, seed=start)
        for layer in range(shape.n_layers):
            attend_entries(disk, layer, q, start + 40)
            following = (layer + 1) % shape.n_layers
            for store in (memory, disk):
                k, v = (draw(3, heads, width, seed=start + 13 * layer + part) for part in (5, 6))
                store.write(following, start + 10, k, v)
            time.sleep(0.1)
            ours, theirs = (attend_entries(store, following, q, start + 40) for store in (disk, memory))
            assert torch.equal(ours, theirs), (start, layer)


def test_a_part_of_a_page_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer bytes than asked for are an error, and never entries of zeros."""
    shape = replace(shape_of(), n_layers=3)
    disk = DiskStore(shape)
    k = draw(70, shape.n_kv_heads, shape.head_dim, seed=1)
    for layer in range(3):
        disk.write(layer, 0, k, k)
    real = os.preadv
    monkeypatch.setattr("vcbench.engine.kv.disk.os.preadv", lambda file, group, at: real(file, group[:-1], at))
    with pytest.raises(StorageError, match="bytes went through"):
        disk.view(0)


def test_bytes_on_disk_are_of_pages_in_use_and_not_of_room() -> None:
    shape = replace(shape_of(), n_layers=3)
    disk = DiskStore(shape, entries=64)
    page = disk.disk_bytes() // 3
    disk.reserve(128)
    disk.reserve(192)
    assert disk._capacity > 3
    assert disk.disk_bytes() == 3 * 3 * page
    disk.release(70)
    assert disk.disk_bytes() == 3 * 2 * page


def test_what_is_read_back_is_counted() -> None:
    """All layers once for each pass, where there are more of them than buffers; nothing where there are not."""
    for layers, passes, expected in ((2, 5, 0), (4, 3, 4 * 3)):
        shape = replace(shape_of(), n_layers=layers)
        disk = DiskStore(shape)
        k = draw(100, shape.n_kv_heads, shape.head_dim, seed=1)
        for layer in range(layers):
            disk.write(layer, 0, k, k)
        before, layer_bytes = disk.reread_bytes(), disk.disk_bytes() // layers
        for _ in range(passes):
            for layer in range(layers):
                disk.view(layer)
        assert (disk.reread_bytes() - before) // layer_bytes in (expected, expected + 1)
