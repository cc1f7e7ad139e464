"""The queries of a cache's latest passes, for methods that judge entries by the attention that they get."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class _Pass:
    """Rows of positions start .. stop - 1, for each layer [n, H, D], post-RoPE."""

    start: int
    stop: int
    layers: list[Tensor]


class QueryLog:
    """What was asked at the positions that a cache has not yet committed, or has committed last."""

    def __init__(self) -> None:
        self._passes: list[_Pass] = []

    def note(self, layer: int, start: int, q: Tensor) -> None:
        """Takes down queries [n, H, D] of positions from `start` on, layer after layer; any after it are forgotten."""
        if layer == 0:
            self.keep(0, start)
            self._passes.append(_Pass(start, start + q.shape[0], []))
        self._passes[-1].layers.append(q.clone())

    def row(self, position: int) -> list[Tensor] | None:
        """The queries [H, D] of a position, layer by layer, or None if they are not known."""
        for noted in self._passes:
            if noted.start <= position < noted.stop:
                return [layer[position - noted.start] for layer in noted.layers]
        return None

    def keep(self, start: int, stop: int) -> None:
        """Forgets the queries of all positions but start .. stop - 1, as far as whole passes allow."""
        for noted in self._passes:
            noted.stop = min(noted.stop, stop)
        self._passes = [noted for noted in self._passes if max(start, noted.start) < noted.stop]

    def nbytes(self) -> int:
        """Bytes held."""
        return sum(layer.nbytes for noted in self._passes for layer in noted.layers)
