"""What a prefill gathers for compressors on its way, and what each part of that took."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vcbench.engine.clock import now
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTime:
    """Seconds of a prefill that gathered for several methods at once: `total_s`, and the parts within it.

    statistics_s: by statistic. window_s: keeping the prompt's last queries.
    """

    total_s: float
    window_s: float = 0.0
    statistics_s: dict[Statistic[Any], float] = field(default_factory=dict)

    def alone(self, *, query_window: int = 0, statistics: Collection[Statistic[Any]] = ()) -> float:
        """Seconds without what was gathered for others: those of a method that needs this window and these alone."""
        others = sum(seconds for name, seconds in self.statistics_s.items() if name not in statistics)
        return max(0.0, self.total_s - others - (0.0 if query_window else self.window_s))


class Gathering:
    """The observers of one prefill; each is timed by itself, so that its cost is charged to those who asked for it."""

    def __init__(
        self, shape: KVShape, tokens: int, *, query_window: int, statistics: Collection[Statistic[Any]]
    ) -> None:
        self.device, self.query_window = shape.device, query_window
        self.windows: list[Tensor] = []
        self.window_s = 0.0
        self.gathered: dict[Statistic[Any], Accumulator[Any]] = {
            wanted: wanted.begin(shape, tokens) for wanted in statistics
        }
        self.seconds = dict.fromkeys(self.gathered, 0.0)

    def show(self, rows: LayerRows) -> None:
        """Takes in one layer's rows of one chunk."""
        if not self.query_window and not self.gathered:
            return
        at = now(self.device)
        if self.query_window:
            keep_window(self.windows, rows.layer, rows.q, self.query_window)
            at, began = now(self.device), at
            self.window_s += at - began
        for wanted, accumulator in self.gathered.items():
            accumulator.add(rows)
            at, began = now(self.device), at
            self.seconds[wanted] += at - began

    def results(self) -> dict[Statistic[Any], Any]:
        """The finished statistics."""
        found = {}
        for wanted, accumulator in self.gathered.items():
            began = now(self.device)
            found[wanted] = accumulator.result()
            self.seconds[wanted] += now(self.device) - began
        return found

    def time(self, total_s: float) -> PrefillTime:
        """What the prefill took, by part."""
        return PrefillTime(total_s=total_s, window_s=self.window_s, statistics_s=dict(self.seconds))


def keep_window(windows: list[Tensor], layer: int, q: Tensor, size: int) -> None:
    """windows[layer] becomes the last `size` queries seen so far."""
    if layer == len(windows):
        windows.append(q[-size:].clone())
    else:
        windows[layer] = torch.cat([windows[layer], q])[-size:].clone()
