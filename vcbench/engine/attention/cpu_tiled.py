"""Quantised caches with exact tokens or a sketch on CPU: codes are decoded into tiles, a block at a time."""

from __future__ import annotations

import numba
import torch
from torch import Tensor

from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.kernels.cpu.codes import tiled_attention as kernel
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kv.pages import PagedStore


def attend_tiled(cache: QuantisedCache, tail: PagedStore, layer: int, q: Tensor) -> Tensor:
    """Attention of q: [n, H, D], the cache's next tokens, in its frame's coordinates; returns [n, H, D]."""
    shape, n = cache.shape, q.shape[0]
    out = torch.empty((n, shape.n_kv_heads, shape.n_heads // shape.n_kv_heads, shape.head_dim))
    pages = kernel.Pages(tail.table(), cache.tail_start // BLOCK, *tail.layout(layer))
    exact = kernel.ExactEntries(*(x.numpy() for x in cache.exact.of_layer(layer)))
    kernel.attend_tiled(
        numba.get_num_threads(), q.contiguous().numpy(), cache.key_codes(layer), cache.value_codes(layer),
        cache.sketch_codes(layer), exact, pages, cache.tokens + 1, cache.width, out.numpy(),
    )  # fmt: skip
    return out.view(q.shape)
