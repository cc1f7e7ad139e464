"""What a run still owes: which cells a prompt is asked of, and which answers and divergences are missing.

The ledger says what is there and the plan what is wanted: what is owed is the difference, and nobody else remembers it.
"""

from __future__ import annotations

from vcbench.backends.cells import Cell
from vcbench.config.schema import TaskConfig
from vcbench.runners.ledger import Key, Ledger, failed
from vcbench.runners.setup import Workbench
from vcbench.tasks.base import Prompt

MEASURED = ("lossy", "vericache")
"""Arms whose distributions are compared with full KV's."""


class Agenda:
    """The difference between a run's plan and its ledger."""

    def __init__(self, bench: Workbench, ledger: Ledger) -> None:
        self.bench, self.ledger = bench, ledger
        self.measures = bench.config.metrics.divergence and bench.backend.capabilities().divergence

    def cells(self, task: TaskConfig, prompt: Prompt) -> list[Cell]:
        """The cells that a prompt is asked of, `full` first: a follow-up those alone whose answers led to it."""
        cells = self.bench.plan.of_task(task.name)
        asked = self.ledger.asked.get((task.name, prompt.id))
        return [cell for cell in cells if asked is None or cell.id in asked]

    def missing(self, task: TaskConfig, prompt: Prompt) -> int:
        """How many lines this prompt still owes."""
        cells = self.cells(task, prompt)
        owed = sum(self.owes_answer(cell, prompt) + self.owes_divergence(cell, prompt) for cell in cells)
        # A prompt's line that was damaged is written again, though all its answers may be there.
        return owed + ((task.name, prompt.id) not in self.ledger.tails)

    def owes_answer(self, cell: Cell, prompt: Prompt) -> bool:
        """Whether the prompt is asked of the cell, and has neither been answered nor failed there."""
        return cell in self.cells(cell.task, prompt) and self._key(cell, prompt) not in self.ledger.answers

    def owes_divergence(self, cell: Cell, prompt: Prompt) -> bool:
        """Whether a divergence is wanted and can still be had: full KV must be asked too, and neither have failed.

        Nothing is owed that the backend cannot measure.
        """
        full = self.full(cell)
        if full is None or cell.config.arm not in MEASURED or not self.measures:
            return False
        if self._key(cell, prompt) in self.ledger.measured:
            return False
        asked = self.cells(cell.task, prompt)
        lines = [self.ledger.answers.get(self._key(each, prompt)) for each in (full, cell)]
        return full in asked and cell in asked and not any(line is not None and failed(line) for line in lines)

    def measurable(self, cell: Cell, prompt: Prompt) -> bool:
        """Whether the divergence is owed and both answers have been recorded; a broken engine may leave one out."""
        full = self.full(cell)
        return self.owes_divergence(cell, prompt) and all(
            self._key(each, prompt) in self.ledger.answers for each in (full, cell) if each is not None
        )

    def full(self, cell: Cell) -> Cell | None:
        """The full-KV cell that a cell's distributions are compared with; None in a run without one."""
        return next((each for each in self.bench.plan.of_task(cell.task.name) if each.config.arm == "full"), None)

    @staticmethod
    def _key(cell: Cell, prompt: Prompt) -> Key:
        return cell.id, cell.task.name, prompt.id
