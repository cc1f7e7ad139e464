"""The engine that decodes the batches of a run, cell by cell."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from vcbench.config.schema import Arm
from vcbench.engine.decoding.progress import Observer
from vcbench.engine.decoding.session import PARTS, CellSetup, Parts, Prefilled, StreamFactory, decode_cell
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import BatchTiming, Generation


class Engine:
    """`decode_cell`, with the parts of cells replaced where that is asked for."""

    def __init__(self, parts: Parts | None = None) -> None:
        """`parts` replace the usual ones in every arm."""
        self.replaced = parts

    def parts(self, arm: Arm) -> Parts:
        """What the cells of an arm are put together from."""
        return self.replaced or PARTS

    def with_parts(self, parts: Parts) -> Engine:
        """The same engine with its cells put together from these."""
        return Engine(parts)

    def __call__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        batch: Sequence[Prefilled],
        *,
        stream: StreamFactory | None = None,
        observe: Observer | None = None,
    ) -> Generator[Generation, None, BatchTiming]:
        """Decodes a batch to its end."""
        return decode_cell(decoder, setup, batch, stream=stream, observe=observe, parts=self.parts(setup.arm))
