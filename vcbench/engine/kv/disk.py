"""Exact storage of keys and values in a file, of which two layers at a time are in memory.

Verification goes through the layers in order: while one is attended to, the next is read into the other buffer. What
is computed is what `PagedStore` computes, on the same pages by the same kernel, so that the bits are the same.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.kv.store import ExactStore, PageView
from vcbench.errors import StorageError

PAGES_PER_CALL = 256
"""Pages that one call of the operating system reads or writes; POSIX allows 1,024 buffers."""


@dataclass(slots=True)
class _Buffer:
    """Memory for one layer; `layer` is the one that it holds, None while it holds none."""

    store: PagedStore
    layer: int | None = None


@cache
def _reader() -> ThreadPoolExecutor:
    """The thread that reads ahead, one for all caches: the disk is one too."""
    return ThreadPoolExecutor(1, thread_name_prefix="vcbench-disk")


class DiskStore(ExactStore):
    """CPU float32: pages of 64 entries, each [2, Hk, W, 64] of one layer, a layer's pages one after the other.

    The file has no name: it is gone when the store is, or with the process, however that ends. Whatever is written to
    memory is written to the file at once; the operating system decides when it reaches the disk.
    """

    def __init__(self, shape: KVShape, directory: Path | None = None, entries: int = 0) -> None:
        """`directory` (None: the system's for temporary files) is where the file lies; room for `entries` at first.

        Raises StorageError if there is no room, and where the system cannot read into several buffers at once.
        """
        super().__init__(shape)
        if not hasattr(os, "preadv"):
            raise StorageError("a full cache on disk needs preadv, which this system lacks; use full_cache: memory")
        one = replace(shape, n_layers=1)
        self._ready, self._other = _Buffer(PagedStore(one)), _Buffer(PagedStore(one))
        self._page_bytes = 2 * shape.n_kv_heads * self._ready.store.width * BLOCK * 4
        self._directory = Path(directory or tempfile.gettempdir())
        self._first = self._pages = self._capacity = self._reread = 0
        self._ahead: Future[None] | None = None
        with self._explained():
            self._file, name = tempfile.mkstemp(prefix="vcbench-kv-", dir=self._directory)
            weakref.finalize(self, os.close, self._file)
            Path(name).unlink()
        self.reserve(entries)

    def reserve(self, entries: int) -> None:
        pages = -(-entries // BLOCK)
        if pages <= self._pages:
            return
        self._wait()
        if self._first + pages > self._capacity:
            self._widen(max(self._first + pages, 2 * self._capacity))
        self._pages = pages
        for buffer in (self._ready, self._other):
            buffer.store.reserve(entries)

    def release(self, entries: int) -> None:
        self._wait()
        self._pages = min(self._pages, -(-entries // BLOCK))
        for buffer in (self._ready, self._other):
            buffer.store.release(entries)

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        if not k.shape[0]:
            return
        stop = start + k.shape[0]
        self.reserve(stop)
        store = self._stage(layer)
        store.write(0, start, k, v)
        first, last = start // BLOCK, -(-stop // BLOCK)
        self._transfer(os.pwritev, layer, first, store.tensors()[first:last])

    def read(self, layer: int, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Reads only the pages that hold these entries, past the buffers."""
        highest = int(entries.max()) + 1 if entries.numel() else 0
        if highest > self._pages * BLOCK:
            raise IndexError(f"entry {highest - 1} of a store that holds {self._pages * BLOCK}")
        wanted, place = torch.unique(entries // BLOCK, return_inverse=True)
        scratch = PagedStore(replace(self.shape, n_layers=1))
        scratch.reserve(len(wanted) * BLOCK)
        for page, number in zip(scratch.tensors(), wanted.tolist(), strict=True):
            self._transfer(os.preadv, layer, number, [page])
        return scratch.read(0, place * BLOCK + entries % BLOCK)

    def view(self, layer: int) -> PageView:
        store, following = self._stage(layer), (layer + 1) % self.shape.n_layers
        if following not in (self._ready.layer, self._other.layer):
            self._ahead = _reader().submit(self._fill, self._other, following)
        return store.view(0)

    def drop_front(self, entries: int) -> None:
        self._wait()
        self._first += entries // BLOCK
        self._pages -= entries // BLOCK
        for buffer in (self._ready, self._other):
            buffer.store.drop_front(entries)

    def tensors(self) -> list[Tensor]:
        return [*self._ready.store.tensors(), *self._other.store.tensors()]

    def reread_bytes(self) -> int:
        self._wait()
        return self._reread

    def disk_bytes(self) -> int:
        return self.shape.n_layers * self._pages * self._page_bytes

    def _stage(self, layer: int) -> PagedStore:
        """The buffer with a layer in it, read ahead or now."""
        self._wait()
        if self._ready.layer != layer:
            self._ready, self._other = self._other, self._ready
        if self._ready.layer != layer:
            self._fill(self._ready, layer)
        return self._ready.store

    def _fill(self, buffer: _Buffer, layer: int) -> None:
        buffer.layer = None
        self._transfer(os.preadv, layer, 0, buffer.store.tensors()[: self._pages])
        self._reread += self._pages * self._page_bytes
        buffer.layer = layer

    def _wait(self) -> None:
        """Lets the reading ahead come to its end; what went wrong there is raised here."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.result()

    def _transfer(self, call: Callable[..., int], layer: int, first: int, pages: Sequence[Tensor]) -> None:
        """Reads or writes pages of a layer from page number `first` on."""
        for start in range(0, len(pages), PAGES_PER_CALL):
            group = [page.numpy().data.cast("B") for page in pages[start : start + PAGES_PER_CALL]]
            at = (layer * self._capacity + self._first + first + start) * self._page_bytes
            with self._explained():
                done = call(self._file, group, at)
                if done != len(group) * self._page_bytes:
                    raise OSError(f"{done} of {len(group) * self._page_bytes} bytes went through")

    def _widen(self, capacity: int) -> None:
        """Makes room for this many pages a layer; the last layer moves first, so that none is overwritten."""
        old, self._capacity = self._capacity, capacity
        held = bytearray((self._first + self._pages) * self._page_bytes)
        with self._explained():
            os.ftruncate(self._file, self.shape.n_layers * capacity * self._page_bytes)
            for layer in reversed(range(self.shape.n_layers if len(held) else 0)):
                os.preadv(self._file, [held], layer * old * self._page_bytes)
                os.pwritev(self._file, [held], layer * capacity * self._page_bytes)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the full cache cannot be kept in {self._directory}: {error.strerror or error}; free space there, "
                "name another place with engine.disk_directory, or use full_cache: memory"
            ) from error
