"""Measures how far each cell's distributions are from full KV's, once its answers are recorded.

A lossy cell is teacher-forced along full KV's output. A VeriCache cell is measured by its own verification: where the
hash of all its logits is full KV's, every difference is exactly 0, and nothing needs to run; where it is not, both are
decoded once more and their logits compared, up to the first token that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcbench.backends.base import Pair
from vcbench.backends.cells import Cell
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.progress import Committed, Observer
from vcbench.engine.decoding.session import CellSetup, Lookup, MakeSession, StreamFactory, decode_cell
from vcbench.engine.decoding.teacher_forced import Divergence, measure_divergence, same_logits, unknown_steps
from vcbench.engine.model.decoder import Decoder

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Divergences:
    """Measures cells. `setup` says how a cell is decoded, `session` by what, `stream` makes its readers of text."""

    decoder: Decoder
    session: MakeSession
    setup: Callable[[Cell], CellSetup]
    stream: StreamFactory

    def of(self, cell: Cell, full: Cell, pairs: Sequence[Pair], beside: Sequence[Prefilled]) -> dict[str, Divergence]:
        """The divergence of each pair, by request; `beside` are all that the cell decoded together."""
        if cell.config.arm == "vericache":
            return self._verified(cell, full, pairs, beside)
        setup = self.setup(cell)
        (level,) = setup.levels
        assert not isinstance(level.drafts_by, Lookup), "only a compressed cache is measured"
        outputs = {pair.full.request: pair.full.token_ids for pair in pairs}
        batch = [item for item in beside if item.request.id in outputs]
        return measure_divergence(self.decoder, level.drafts_by, batch, outputs, seed=setup.seed)

    def _verified(
        self, cell: Cell, full: Cell, pairs: Sequence[Pair], beside: Sequence[Prefilled]
    ) -> dict[str, Divergence]:
        found, wanted = {}, {}
        for pair in pairs:
            reference, line = pair.full, pair.cell
            equal = bool(line.logits_sha256) and line.logits_sha256 == reference.logits_sha256
            if equal and line.token_ids == reference.token_ids:
                found[line.request] = same_logits(len(reference.token_ids) - 1)
            else:
                wanted[line.request] = reference.token_ids
        if wanted:
            kept: dict[str, list[Rows]] = {name: [] for name in wanted}

            def keep(committed: Committed) -> None:
                if committed.request_id in kept:
                    kept[committed.request_id].append(rows_of(committed))

            self._decode(full, beside, keep)
            verified = {name: _Verified(output, np.concatenate(kept[name])) for name, output in wanted.items()}

            def compare(committed: Committed) -> None:
                if committed.request_id in verified:
                    verified[committed.request_id].take(committed)

            self._decode(cell, beside, compare)
            found |= {name: each.result() for name, each in verified.items()}
        return found

    def _decode(self, cell: Cell, batch: Sequence[Prefilled], observe: Observer) -> None:
        """Decodes a batch once more, the engine's faults included, and shows every committed row of logits."""
        made, setup = self.session, self.setup(cell)
        for _ in decode_cell(self.decoder, setup, batch, stream=self.stream, observe=observe, session=made):
            pass


class _Verified:
    """One request's verification against full KV's logits, row by row while both have the same prefix."""

    def __init__(self, output: Sequence[int], reference: Rows) -> None:
        """reference: [T, V], the logits that chose each token of `output`."""
        self.output, self.reference = output, reference
        self.divergence, self.same = Divergence(basis="verify logits"), True

    def take(self, committed: Committed) -> None:
        """Compares the rows up to that of the first other token; the first row is the prefill's, which both share."""
        rows = rows_of(committed)
        for step, (token, row) in enumerate(zip(committed.token_ids, rows, strict=True), start=committed.first):
            if not self.same or step >= min(len(self.output), len(self.reference)):
                return
            if step:
                self.divergence.add(self.reference[step : step + 1], row[None], [self.output[step]])
            self.same = token == self.output[step]

    def result(self) -> Divergence:
        """With every step that could not be compared as unknown."""
        missing = len(self.output) - 1 - len(self.divergence.kl)
        self.divergence.extend(unknown_steps(missing))
        return self.divergence


def rows_of(committed: Committed) -> Rows:
    """A copy of the logits of a commit, [n, V]."""
    rows: Rows = committed.logits.detach().float().cpu().numpy().copy()
    return rows
