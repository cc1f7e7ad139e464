"""How much attention keys get, column by column, in memory that does not grow with the number of query rows."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vcbench.engine.kernels.attention import BLOCK
from vcbench.engine.kernels.columns import SPLITS, column_shares

Reduce = Literal["highest", "sum"]
_TORCH_TILE = 64


def attention_by_column(q: Tensor, keys: Tensor, visible_first: int, columns: int, reduce: Reduce) -> Tensor:
    """The highest softmax share that any row gives each of the first `columns` keys, or the sum over all rows.

    q: [n, H, D]; keys: [Hk, N, D]; token i sees the first visible_first + i keys, and the rows of a KV head are those
    of all query heads of its group. Returns [Hk, columns], float32.
    """
    if q.device.type != "cpu":
        return _by_torch(q, keys, visible_first, columns, reduce)
    padded = torch.nn.functional.pad(keys.float(), (0, 0, 0, -keys.shape[1] % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).transpose(2, 3).contiguous()
    parts = torch.zeros((keys.shape[0], SPLITS, columns))
    column_shares(q.float().contiguous().numpy(), blocks.numpy(), visible_first, reduce == "highest", parts.numpy())
    return parts.amax(1) if reduce == "highest" else parts.sum(1)


def _by_torch(q: Tensor, keys: Tensor, visible_first: int, columns: int, reduce: Reduce) -> Tensor:
    """The same in torch operations, `_TORCH_TILE` tokens at a time."""
    n, kv_heads = q.shape[0], keys.shape[0]
    turned = keys.float().transpose(1, 2)
    rows = (q.float() * q.shape[2] ** -0.5).unflatten(1, (kv_heads, -1)).permute(1, 0, 2, 3)
    found = torch.zeros((kv_heads, columns), device=q.device)
    index = torch.arange(keys.shape[1], device=q.device)
    for start in range(0, n, _TORCH_TILE):
        part = rows[:, start : start + _TORCH_TILE]
        visible = visible_first + start + torch.arange(part.shape[1], device=q.device)
        logits = torch.bmm(part.flatten(1, 2), turned).unflatten(1, (part.shape[1], -1))
        logits.masked_fill_((index >= visible[:, None])[:, None], float("-inf"))
        shares = torch.softmax(logits, dim=-1)[..., :columns].flatten(1, 2)
        found = torch.maximum(found, shares.amax(1)) if reduce == "highest" else found + shares.sum(1)
    return found
