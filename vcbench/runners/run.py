"""Carries out a run: for each batch of prompts one prefill, then every cell in turn, then the divergences.

Cells change places from batch to batch, so that no arm always runs first. What the records already hold is not run
again; what runs is recorded as it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from vcbench.backends.base import Asked, MakeBackend, Pair
from vcbench.backends.bundled.backend import Bundled
from vcbench.backends.cells import Cell
from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.engine.types import Generation
from vcbench.records.schema import RequestLine
from vcbench.records.store import RunDirectory
from vcbench.runners import recording
from vcbench.runners.agenda import Agenda
from vcbench.runners.directory import open_run
from vcbench.runners.display import Display
from vcbench.runners.ledger import Ledger
from vcbench.runners.neighbours import Neighbours
from vcbench.runners.setup import Workbench, exclusions, prepare
from vcbench.runners.turns import Turns
from vcbench.tasks.base import Prompt

QUEUED_BATCHES = 8
"""With `engine.refill`, as many prompts as fill the batch so often lie in one queue: its end, where the batch runs
empty, is then a small part of what is timed, and there are still several queues to compare."""


def execute(config: RunConfig, *, console: Console, backend: MakeBackend = Bundled, beside: str | None = None) -> Path:
    """Runs or finishes a configuration and returns the run's directory.

    `beside` is the run's name where its own is that of another run, which then stays where it is.

    Raises VcbenchError before anything is written when the model, the plan or the prompts are not usable, and
    RecordError when the disk fails; the same call then goes on where it stopped.
    """
    bench = prepare(config, backend)
    run = open_run(bench, console, beside=beside)
    with run:
        for note in run.dropped:
            console.print(f"dropped: {note}", markup=False)
        for note in bench.notes:
            console.print(f"note: {note}", markup=False)
        _report_exclusions(bench, console)
        runner = _Runner(bench, run, console)
        with bench.backend.at_work(console.print):
            runner.run()
        run.finish()
        runner.report_failures()
    return run.path


class _Runner:
    """One run in progress: batches of prompts through every cell, and what they give into the ledger."""

    def __init__(self, bench: Workbench, directory: RunDirectory, console: Console) -> None:
        self.bench, self.directory, self.console = bench, directory, console
        self.backend, self.ledger = bench.backend, Ledger(directory)
        self.agenda = Agenda(bench, self.ledger)
        self.turns = Turns(self.agenda)

    def run(self) -> None:
        batches = [
            (number, task, prompts)
            for task in self.bench.config.tasks
            for number, prompts in enumerate(_chunks(self.bench.prompts[task.name], self._together))
        ]
        missing = sum(self.agenda.missing(task, prompt) for _, task, prompts in batches for prompt in prompts)
        if not missing and not self.turns.unfinished():
            self.console.print(f"{self.directory.path} is complete; nothing to run", markup=False)
            return
        with Display(self.console, missing, stage="loading the model") as self.display:
            opened = self.backend.open(self.bench.plan, self.display.enter)
            self.directory.add_provenance({"opened": dict(opened)})
            self.display.begin()
            for number, task, prompts in batches:
                self._run_turns(number, task, prompts)

    def report_failures(self) -> None:
        """Says which requests failed in some cell or were not asked, and the first one's reason."""
        for line in self.turns.not_asked():
            self.console.print(line, markup=False)
        first = {(task, prompt.id) for task, prompts in self.bench.prompts.items() for prompt in prompts}
        asked = first | self.ledger.asked.keys()
        failures = {key: reason for key, reason in self.ledger.failures().items() if key in asked}
        if not failures:
            return
        total = sum(map(len, self.bench.prompts.values())) + len(self.ledger.asked)
        reason = next(iter(failures.values()))
        self.console.print(f"FAILED: {len(failures)} of {total} requests; the first: {reason}", markup=False)

    @property
    def _together(self) -> int:
        """Prompts that every cell answers before the next ones: a batch, or what is drawn from as one ends."""
        engine = self.bench.config.engine
        return engine.batch_size * (QUEUED_BATCHES if engine.refill else 1)

    def _run_turns(self, number: int, task: TaskConfig, prompts: Sequence[Prompt]) -> None:
        """A batch of prompts, and then in batches whatever their answers lead to."""
        todo = [prompt for prompt in prompts if self.agenda.missing(task, prompt)]
        if todo:
            self._run_batch(number, task, todo)
        for batch in _chunks(self.turns.after(task, prompts), self._together):
            more = sum(self.agenda.missing(task, prompt) for prompt in batch)
            self.display.expect(more)
            self._run_turns(number, task, batch)

    def _run_batch(self, number: int, task: TaskConfig, prompts: Sequence[Prompt]) -> None:
        cells = self.bench.plan.of_task(task.name)
        batch = self._admit(task, prompts)
        turn = number % len(cells)
        for cell in (*cells[turn:], *cells[:turn]):
            self._run_cell(cell, batch)
        for cell in cells:
            self._run_divergence(cell, batch)
        self.backend.release()

    def _admit(self, task: TaskConfig, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts that can be served; the others are recorded as failed in every cell asked."""
        self.display.enter(f"{task.name}: prefill")
        asked = [Asked(self.bench.request(task, each), tuple(self.agenda.cells(task, each))) for each in prompts]
        ready = []
        for prompt, admission in zip(prompts, self.backend.admit(asked), strict=True):
            if (task.name, prompt.id) not in self.ledger.tails:
                line = recording.prompt_line(task.name, prompt, self.bench.tokenizer, admission.prefill_s)
                self.ledger.append(line)
                self.display.advance()
            if admission.error is None:
                ready.append(prompt)
                continue
            for cell in self.agenda.cells(task, prompt):
                if self.agenda.owes_answer(cell, prompt):
                    self._record(recording.failed_line(cell, prompt, admission.error))
        return ready

    def _run_cell(self, cell: Cell, batch: Sequence[Prompt]) -> None:
        todo = {prompt.id: prompt for prompt in batch if self.agenda.owes_answer(cell, prompt)}
        if not todo:
            return
        self.display.enter(f"{cell.task.name}: {cell.label}")
        ended: list[Generation] = []
        requests = {name: self.bench.request(cell.task, prompt) for name, prompt in todo.items()}
        recording.reset_peak_rss()
        neighbours = Neighbours()
        serving = self.backend.serve(cell, list(requests.values()))
        for generation in serving:
            ended.append(generation)
            prompt, stop_ids = todo[generation.request_id], requests[generation.request_id].stop_ids
            self._record(recording.request_line(cell, prompt, generation, self.bench.tokenizer, stop_ids))
        gives, load = self.backend.capabilities(), neighbours.timing()
        refilled = self.bench.config.engine.refill
        self.ledger.append(recording.batch_line(cell, ended, serving.timing, gives, load, refilled=refilled))

    def _record(self, line: RequestLine) -> None:
        self.ledger.append(line)
        self.display.advance(tokens=len(line.token_ids))

    def _run_divergence(self, cell: Cell, batch: Sequence[Prompt]) -> None:
        todo = [prompt for prompt in batch if self.agenda.measurable(cell, prompt)]
        full = self.agenda.full(cell)
        if not todo or full is None:
            return
        self.display.enter(f"{cell.task.name}: divergence of {cell.label}")
        answers, task = self.ledger.answers, cell.task.name
        pairs = [Pair(answers[full.id, task, prompt.id], answers[cell.id, task, prompt.id]) for prompt in todo]
        beside = [self.bench.request(cell.task, each) for each in batch if cell in self.agenda.cells(cell.task, each)]
        started = time.perf_counter()
        found = self.backend.measure(cell, full, pairs, beside)
        seconds = (time.perf_counter() - started) / len(todo)
        for prompt in todo:
            self.ledger.append(recording.divergence_line(cell, prompt.id, found[prompt.id], seconds))
        self.display.advance(len(todo))


def _report_exclusions(bench: Workbench, console: Console) -> None:
    """Says how many rows of each task cannot be asked, and names the first."""
    for name, task in bench.sources.items():
        for line in exclusions(name, task, len(bench.prompts[name])):
            console.print(line, markup=False)


def _chunks(prompts: Sequence[Prompt], size: int) -> Iterator[Sequence[Prompt]]:
    for start in range(0, len(prompts), size):
        yield prompts[start : start + size]
