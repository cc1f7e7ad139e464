"""How much attention keys get, column by column, in memory that does not grow with the number of query rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.exact.key_shares import BLOCK_FIELDS, SPLITS, attend_columns
from vcbench.engine.kv.stores import ExactStore, PagedStore

Reduce = Literal["highest", "sum"]
Range = tuple[int, int]
"""Consecutive entries of a store: the first, and the one after the last."""
_TORCH_TILE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Whose attention is gathered: the shares that n rows give the entries `wanted` of a store's layer.

    Row i sees entries below `first_visible` + i. Its softmax is over what it sees of `seen`, disjoint ranges in
    ascending order that end with the last row's own entry; `wanted` lies in one of them.
    """

    store: ExactStore
    layer: int
    first_visible: int
    seen: Sequence[Range]
    wanted: Range
    reduce: Reduce


def attention_by_column(
    q: Tensor, columns: Columns, row_weights: Tensor | None = None, *, attend: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The highest share, times the row's weight, that any row gives each entry, or the sum over rows: [H, wanted].

    q: [n, H, D]; row_weights: [n], 1 if not given. With `attend` also the rows' attention over everything that they
    see, [n, H, D], where that comes out of the same products: on exact pages. None elsewhere. Float32.
    """
    if row_weights is None:
        row_weights = torch.ones(q.shape[0], device=q.device)
    if not isinstance(columns.store, PagedStore):
        return _by_torch(q, columns, row_weights), None
    store, shape = columns.store, columns.store.shape
    last = columns.first_visible + q.shape[0] - 1
    store.check(last)
    blocks, seen = block_list(columns, last if attend else 0)
    slots = -(-columns.wanted[1] // BLOCK) - columns.wanted[0] // BLOCK
    group = shape.n_heads // shape.n_kv_heads
    parts = torch.zeros((shape.n_kv_heads, SPLITS, slots, group, BLOCK))
    out = torch.empty((q.shape[0] if attend else 0, shape.n_kv_heads, group, shape.head_dim))
    attend_columns(
        q.contiguous().numpy(), row_weights.contiguous().numpy(), store.table(), *store.layout(columns.layer),
        store.width, blocks, seen, columns.first_visible, columns.reduce == "highest", parts.numpy(), out.numpy(),
    )  # fmt: skip
    found = (parts.amax(1) if columns.reduce == "highest" else parts.sum(1)).transpose(1, 2).flatten(2).flatten(0, 1)
    start = columns.wanted[0] % BLOCK
    return found[:, start : start + columns.wanted[1] - columns.wanted[0]], out.flatten(1, 2) if attend else None


def block_list(columns: Columns, stop: int) -> tuple[NDArray[np.int64], int]:
    """Blocks of `seen`, then those of all other entries below `stop`; and how many the first are.

    [blocks, BLOCK_FIELDS], see the kernel `key_shares`; slots count blocks from that of the first wanted entry on.
    """
    edges = [0, *(edge for span in columns.seen for edge in span), stop]
    others = [(first, min(last, stop)) for first, last in zip(edges[::2], edges[1::2], strict=True)]
    blocks = [block for span in columns.seen for block in _blocks(span, columns.wanted)]
    seen = len(blocks)
    blocks += [block for span in others if span[0] < span[1] for block in _blocks(span, (0, 0))]
    return np.array(blocks, np.int64).reshape(-1, BLOCK_FIELDS), seen


def _blocks(span: Range, wanted: Range) -> list[list[int]]:
    """A range of entries, page by page."""
    pages = range(span[0] // BLOCK, -(-span[1] // BLOCK))
    parts = [(page, max(span[0], page * BLOCK), min(span[1], (page + 1) * BLOCK)) for page in pages]
    return [
        [page, first - page * BLOCK, last - page * BLOCK,
         page - wanted[0] // BLOCK if first < wanted[1] and last > wanted[0] else -1]
        for page, first, last in parts
    ]  # fmt: skip


def _by_torch(q: Tensor, columns: Columns, row_weights: Tensor) -> Tensor:
    """The shares in torch operations, `_TORCH_TILE` rows at a time."""
    kv_heads = columns.store.shape.n_kv_heads
    keys = torch.cat([columns.store.read_range(columns.layer, *span)[0] for span in columns.seen], dim=1)
    turned = keys.float().transpose(1, 2)
    entries = torch.cat([torch.arange(*span, device=q.device) for span in columns.seen])
    wanted = (entries >= columns.wanted[0]) & (entries < columns.wanted[1])
    rows = (q.float() * q.shape[2] ** -0.5).unflatten(1, (kv_heads, -1)).permute(1, 0, 2, 3)
    found = torch.zeros((kv_heads, rows.shape[2], columns.wanted[1] - columns.wanted[0]), device=q.device)
    for start in range(0, q.shape[0], _TORCH_TILE):
        part = rows[:, start : start + _TORCH_TILE]
        visible = columns.first_visible + start + torch.arange(part.shape[1], device=q.device)
        logits = torch.bmm(part.flatten(1, 2), turned).unflatten(1, (part.shape[1], -1))
        logits.masked_fill_((entries >= visible[:, None])[:, None], float("-inf"))
        shares = torch.softmax(logits, dim=-1)[..., wanted]
        shares = shares * row_weights[start : start + _TORCH_TILE, None, None]
        found = torch.maximum(found, shares.amax(1)) if columns.reduce == "highest" else found + shares.sum(1)
    return found.flatten(0, 1)
