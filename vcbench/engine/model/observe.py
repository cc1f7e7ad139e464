"""Watching a prompt's rows layer by layer, and the statistics that compressors gather from them during the prefill."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from vcbench.engine.kv.cache import EntryCache
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.rope import unrotated


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRows:
    """What a layer has computed for n consecutive rows when it is about to attend; their entries are in the cache.

    The rows are positions `start` .. `start` + n - 1 of `cache`. residual: [n, hidden], what enters the layer; hidden:
    the same normalised.
    q: [n, H, D]; k, v: [n, Hk, D]; q and k post-RoPE. `cos`, `sin`: [P, D / 2], the rotation by position.
    """

    layer: int
    start: int
    cache: EntryCache
    residual: Tensor
    hidden: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor


Observer = Callable[[LayerRows], None]
Reader = Callable[[LayerRows], Tensor | None]
"""An observer that may return the rows' attention, [n, H, D], having computed it on the way."""
ResultT = TypeVar("ResultT", covariant=True)


class Accumulator(ABC, Generic[ResultT]):
    """One statistic of one prompt while its rows pass, chunk by chunk in ascending order."""

    @abstractmethod
    def add(self, rows: LayerRows) -> None:
        """Takes in a chunk's rows of one layer."""

    @abstractmethod
    def result(self) -> ResultT:
        """The statistic over all rows taken in."""


class Statistic(ABC, Generic[ResultT]):
    """What to gather from a prompt. Equal statistics are gathered once: make subclasses frozen dataclasses."""

    @abstractmethod
    def begin(self, shape: KVShape, tokens: int) -> Accumulator[ResultT]:
        """Nothing gathered yet, for a prompt of `tokens` tokens."""


def unrotate(x: Tensor, start: int, cos: Tensor, sin: Tensor) -> Tensor:
    """What rotating turned into x: [n, heads, D] at positions from `start` on; float32."""
    span = slice(start, start + x.shape[0])
    return unrotated(x, cos[span, None], sin[span, None])
