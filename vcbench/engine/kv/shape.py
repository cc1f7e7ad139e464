"""What every cache of a model has in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Spans = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What every cache of a model has in common. L layers, Hk KV heads, D head size, H query heads."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * self.dtype.itemsize
