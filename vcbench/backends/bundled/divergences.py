"""Measures how far each cell's distributions are from full KV's, once its answers are recorded.

A lossy cell is teacher-forced along full KV's output. A VeriCache cell is measured by its own verification: where the
hash of all its logits is full KV's, every difference is exactly 0, and nothing needs to run; where it is not, both are
decoded once more and their logits compared, up to the first token that differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcbench.engine.decoding.progress import Committed, Observer
from vcbench.engine.decoding.session import Prefilled, RunCell
from vcbench.engine.decoding.teacher_forced import Divergence, measure_divergence, same_logits, unknown_steps
from vcbench.engine.model.decoder import Decoder
from vcbench.models.tokenizer import TextStream
from vcbench.records.schema import RequestLine
from vcbench.runners import recording
from vcbench.runners.agenda import Agenda
from vcbench.runners.plan import Cell
from vcbench.runners.setup import cell_setup, make_compressor
from vcbench.tasks.base import Prompt

Batch = Sequence[tuple[Prompt, Prefilled]]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Divergences:
    """Measures what a run's agenda owes."""

    agenda: Agenda
    engine: RunCell

    def measure(self, decoder: Decoder, cell: Cell, batch: Batch, todo: Batch) -> None:
        """Measures and records the prompts of `todo`; `batch` are all that the cell decoded together."""
        started = time.perf_counter()
        found = self._verified(decoder, cell, batch, todo) if cell.config.arm == "vericache" else {}
        if cell.config.arm == "lossy" and (compressor := make_compressor(cell)) is not None:
            outputs = {prompt.id: self._line(self._full(cell), prompt).token_ids for prompt, _ in todo}
            snapshots = [snapshot for _, snapshot in todo]
            found = measure_divergence(decoder, compressor, snapshots, outputs, seed=self.agenda.bench.config.seed)
        seconds = (time.perf_counter() - started) / len(todo)
        for prompt, _ in todo:
            self.agenda.ledger.append(recording.divergence_line(cell, prompt.id, found[prompt.id], seconds))

    def _full(self, cell: Cell) -> Cell:
        full = self.agenda.full(cell)
        assert full is not None, "nothing is measured without full KV"
        return full

    def _line(self, cell: Cell, prompt: Prompt) -> RequestLine:
        return self.agenda.ledger.answers[cell.id, cell.task.name, prompt.id]

    def _verified(self, decoder: Decoder, cell: Cell, batch: Batch, todo: Batch) -> dict[str, Divergence]:
        full = self._full(cell)
        found, wanted = {}, {}
        for prompt, _ in todo:
            reference, line = self._line(full, prompt), self._line(cell, prompt)
            equal = bool(line.logits_sha256) and line.logits_sha256 == reference.logits_sha256
            if equal and line.token_ids == reference.token_ids:
                found[prompt.id] = same_logits(len(reference.token_ids) - 1)
            else:
                wanted[prompt.id] = reference.token_ids
        if wanted:
            snapshots = [snapshot for _, snapshot in batch]
            kept: dict[str, list[Rows]] = {name: [] for name in wanted}

            def keep(committed: Committed) -> None:
                if committed.request_id in kept:
                    kept[committed.request_id].append(rows_of(committed))

            self._decode(decoder, full, snapshots, keep)
            verified = {name: _Verified(output, np.concatenate(kept[name])) for name, output in wanted.items()}

            def compare(committed: Committed) -> None:
                if committed.request_id in verified:
                    verified[committed.request_id].take(committed)

            self._decode(decoder, cell, snapshots, compare)
            found |= {name: each.result() for name, each in verified.items()}
        return found

    def _decode(self, decoder: Decoder, cell: Cell, snapshots: Sequence[Prefilled], observe: Observer) -> None:
        """Decodes a batch once more, the engine's faults included, and shows every committed row of logits."""
        self.engine(
            decoder,
            cell_setup(cell, self.agenda.bench.config),
            snapshots,
            on_end=lambda generation: None,
            stream=lambda: TextStream(self.agenda.bench.tokenizer),
            observe=observe,
        )


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
