"""The full cache in a file: same bits as in memory, two layers in memory, bytes by tier, and what a full disk does."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
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
from torch import Tensor

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
from vcbench.engine.kv.disk import DiskTier
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import BatchTiming, Generation
from vcbench.errors import StorageError

DISK = DiskTier()
ROOT = Path(__file__).parents[3]
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
    """Moved to the disk and back, and so once more for another cell."""
    decoder = tiny.fresh_decoder(DEEP)
    items = [deep(decoder, n) for n in (70, 64, 1)]
    before = [entries(item) for item in items]
    for name in ("kivi", "snapkv"):
        decode(items, name, decoder=decoder)
        for item, held in zip(items, before, strict=True):
            assert isinstance(item.prefill.cache.store, PagedStore)
            assert item.prefill.cache.tokens == len(item.request.prompt_ids)
            assert all(torch.equal(a, b) for a, b in zip(entries(item), held, strict=True))


def entries(item: Prefilled) -> list[Tensor]:
    """Everything that a snapshot holds, layer by layer."""
    cache = item.prefill.cache
    return [x.clone() for layer in range(cache.shape.n_layers) for x in cache.store.read_range(layer, 0, cache.tokens)]


def test_a_snapshot_is_there_again_where_decoding_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny.fresh_decoder(DEEP)
    items = [deep(decoder, n) for n in (70, 64)]
    before = [entries(item) for item in items]

    def failing(blocks: object) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(decoder, "forward", failing)
    with pytest.raises(MemoryError):
        decode(items, "kivi", decoder=decoder)
    for item, held in zip(items, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(entries(item), held, strict=True))


def test_what_is_moved_leaves_the_memory(tmp_path: Path) -> None:
    """By the count of a process of its own: of 192 MiB two layers of sixteen stay, and all comes back."""
    program = f"""
from pathlib import Path
import ctypes, gc, psutil, torch
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.disk import DiskTier
from vcbench.engine.kv.make import make_store
from vcbench.engine.kv.shape import KVShape

shape = KVShape(n_layers=16, n_heads=4, n_kv_heads=4, head_dim=64, dtype=torch.float32, device=torch.device("cpu"))

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss

def there_and_back(tokens):
    cache, empty = FullCache(shape), resident()
    for layer in range(16):
        cache.write(layer, torch.full((tokens, 4, 64), 0.5 + layer), torch.full((tokens, 4, 64), 1.5 + layer))
    cache.advance(tokens)
    cache.commit(tokens)
    full = resident()
    with DiskTier(Path({str(tmp_path)!r})) as tier:
        cache.move_to(tier.store(shape, tokens))
        moved, counted = resident(), sum(cache.nbytes().values())
        cache.move_to(make_store(shape))
    back = resident()
    held = [(layer + kind, x) for layer in range(16) for kind, x in enumerate(cache.materialize(layer)[:2])]
    same = all(bool((x == 0.5 + number).all()) for number, x in held)
    return full - empty, moved - empty, counted, back - empty, same

there_and_back(64)  # kernels and threads are there before anything is counted
print(*there_and_back(6144))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    full, moved, counted, back, same = done.stdout.split()
    total = 16 * 2 * 4 * 64 * 4 * 6144
    assert same == "True"
    assert int(full) > 0.95 * total
    assert int(counted) == total // 8
    assert int(counted) <= int(moved) < int(counted) + 0.1 * total
    assert int(back) > 0.95 * total


def test_a_pass_reads_every_layer_once_and_the_next_one_ahead() -> None:
    """Five layers, two buffers: what is read follows from the passes; a prompt that was moved reads nothing back."""
    decoder = tiny.fresh_decoder(DEEP)
    item = deep(decoder, 130)
    (done,), _ = decode([item], "snapkv", decoder=decoder)
    assert done.kv_start is not None
    assert done.kv_end is not None
    assert done.kv_start.reread == 0
    layer = 2 * 2 * 32 * 64 * 4 * 3
    assert len(done.rounds) > 1
    # The move leaves the last layers in the buffers, so that the first pass waits for its first layer.
    assert done.kv_end.reread == (1 + 5 * len(done.rounds)) * layer


def test_reading_ahead_is_the_forward_pass_s() -> None:
    """Attention alone fetches nothing but its own layer."""
    with DiskTier() as tier:
        store = tier.store(replace(shape_of(), n_layers=5), 64)
        for layer in range(5):
            store.write(layer, 0, draw(64, 2, 32), draw(64, 2, 32))
        page = 2 * 2 * 32 * 64 * 4
        attend_entries(store, 0, draw(1, 4, 32), 64)
        assert store.reread_bytes() == page
        store.prefetch(1)
        store.prefetch(1)
        store.wait(1)
        attend_entries(store, 1, draw(1, 4, 32), 64)
        assert store.reread_bytes() == 2 * page


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
    ours, memory, held = DISK.store(shape, 64), PagedStore(shape), 0
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
    store = DiskTier(tmp_path).store(shape_of(), 100)
    store.write(0, 0, draw(100, 2, 32), draw(100, 2, 32))
    assert store.disk_bytes() > 0
    assert list(tmp_path.iterdir()) == []


def test_entries_that_it_does_not_hold_are_refused() -> None:
    store = DISK.store(shape_of(), 64)
    with pytest.raises(IndexError, match="entry 64 of a store that holds 64"):
        store.read_range(0, 60, 65)


def test_a_place_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot be kept in .*: No such file or directory; free space there, name"):
        DiskTier(tmp_path / "nowhere").store(shape_of())


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
    store = DiskTier(tmp_path).store(shape, 100)
    for layer in range(5):
        store.write(layer, 0, draw(100, 2, 32), draw(100, 2, 32))
    os.ftruncate(store._file, 1000)
    with pytest.raises(StorageError, match="bytes went through"):
        attend_entries(store, 0, draw(1, 4, 32), 100)


def test_what_is_read_ahead_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that comes in late must not fall on entries that were written meanwhile."""
    shape = replace(shape_of(), n_layers=4)
    memory, disk = PagedStore(shape), DISK.store(shape)
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
            disk.prefetch(following)
            for store in (memory, disk):
                k, v = (draw(3, heads, width, seed=start + 13 * layer + part) for part in (5, 6))
                store.write(following, start + 10, k, v)
            time.sleep(0.1)
            ours, theirs = (attend_entries(store, following, q, start + 40) for store in (disk, memory))
            assert torch.equal(ours, theirs), (start, layer)


def test_a_part_of_a_page_is_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer bytes than asked for are an error, and never entries of zeros."""
    shape = replace(shape_of(), n_layers=3)
    disk = DISK.store(shape)
    k = draw(70, shape.n_kv_heads, shape.head_dim, seed=1)
    for layer in range(3):
        disk.write(layer, 0, k, k)
    real = os.preadv
    monkeypatch.setattr("vcbench.engine.kv.disk.os.preadv", lambda file, group, at: real(file, group[:-1], at))
    with pytest.raises(StorageError, match="bytes went through"):
        disk.view(0)


def test_bytes_on_disk_are_of_pages_in_use_and_not_of_room() -> None:
    shape = replace(shape_of(), n_layers=3)
    disk = DISK.store(shape, 64)
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
        disk = DISK.store(shape)
        k = draw(100, shape.n_kv_heads, shape.head_dim, seed=1)
        for layer in range(layers):
            disk.write(layer, 0, k, k)
        before, layer_bytes = disk.reread_bytes(), disk.disk_bytes() // layers
        for _ in range(passes):
            for layer in range(layers):
                disk.view(layer)
        assert (disk.reread_bytes() - before) // layer_bytes in (expected, expected + 1)
