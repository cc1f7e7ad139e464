"""Carries out a run: for each batch of prompts one prefill, then every cell in turn, then the divergences.

Cells change places from batch to batch, so that no arm always runs first. What the records already hold is not run
again; what runs is recorded as it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vcbench.backends.bundled.compiling import announced
from vcbench.backends.bundled.divergences import Divergences
from vcbench.backends.bundled.warmup import warm_up
from vcbench.compressors.base import Compressor, prefill_for
from vcbench.config.schema import RunConfig, TaskConfig
from vcbench.engine.decoding.session import Prefilled, RunCell, run_cell
from vcbench.engine.decoding.stopping import check_request
from vcbench.engine.environment import set_threads
from vcbench.engine.types import Generation, Request
from vcbench.errors import RequestError
from vcbench.models.instruction import InstructionWriter
from vcbench.models.tokenizer import TextStream
from vcbench.records.schema import RequestLine
from vcbench.runners import recording
from vcbench.runners.agenda import Agenda
from vcbench.runners.directory import open_run
from vcbench.runners.ledger import Ledger
from vcbench.runners.plan import Cell
from vcbench.runners.setup import Workbench, cell_setup, exclusions, load, make_compressor, prepare
from vcbench.runners.turns import Turns
from vcbench.tasks.base import Prompt


def execute(config: RunConfig, *, console: Console, engine: RunCell = run_cell, fault: str | None = None) -> Path:
    """Runs or finishes a configuration and returns the run's directory.

    `fault` names what is wrong with an `engine` that the lossless gate has broken on purpose; it enters every cell id.

    Raises VcbenchError before anything is written when the model, the plan or the prompts are not usable, and
    RecordError when the disk fails; the same call then goes on where it stopped.
    """
    bench = prepare(config, fault=fault)
    threads = set_threads(config.engine.threads)
    run = open_run(bench, threads, console)
    with run:
        for note in run.dropped:
            console.print(f"dropped: {note}", markup=False)
        for note in bench.notes:
            console.print(f"note: {note}", markup=False)
        _report_exclusions(bench, console)
        runner = _Runner(bench, Ledger(run), console, engine)
        with announced(console):
            runner.run()
        run.finish()
        runner.report_failures()
    return run.path


class _Runner:
    """One run in progress: batches of prompts through every cell, and what they give into the ledger."""

    def __init__(self, bench: Workbench, ledger: Ledger, console: Console, engine: RunCell) -> None:
        self.bench, self.ledger, self.console, self.engine = bench, ledger, console, engine
        self.agenda = Agenda(bench, ledger)
        self.turns = Turns(self.agenda)

    def run(self) -> None:
        batches = [
            (number, task, prompts)
            for task in self.bench.config.tasks
            for number, prompts in enumerate(_chunks(self.bench.prompts[task.name], self._batch_size))
        ]
        missing = sum(self.agenda.missing(task, prompt) for _, task, prompts in batches for prompt in prompts)
        if not missing and not self.turns.unfinished():
            self.console.print(f"{self.ledger.place} is complete; nothing to run", markup=False)
            return
        self.decoder, _ = load(self.bench.files, self.bench.identity, self.bench.config.engine.exactness)
        warm_up(self.decoder, self.bench.plan)
        with self._progress() as progress:
            self.progress, self.bar = progress, progress.add_task("prefill", total=missing)
            for number, task, prompts in batches:
                self._run_turns(number, task, prompts)

    def report_failures(self) -> None:
        """Says which requests failed in some cell or were not asked, and the first one's reason."""
        for line in self.turns.not_asked():
            self.console.print(line, markup=False)
        failures = self.ledger.failures()
        if not failures:
            return
        total = sum(map(len, self.bench.prompts.values())) + len(self.ledger.asked)
        reason = next(iter(failures.values()))
        self.console.print(f"FAILED: {len(failures)} of {total} requests; the first: {reason}", markup=False)

    @property
    def _batch_size(self) -> int:
        return self.bench.config.engine.batch_size

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)

    def _run_turns(self, number: int, task: TaskConfig, prompts: Sequence[Prompt]) -> None:
        """A batch of prompts, and then in batches whatever their answers lead to."""
        todo = [prompt for prompt in prompts if self.agenda.missing(task, prompt)]
        if todo:
            self._run_batch(number, task, todo)
        for batch in _chunks(self.turns.after(task, prompts), self._batch_size):
            more = sum(self.agenda.missing(task, prompt) for prompt in batch)
            self.progress.update(self.bar, total=(self.progress.tasks[self.bar].total or 0) + more)
            self._run_turns(number, task, batch)

    def _run_batch(self, number: int, task: TaskConfig, prompts: Sequence[Prompt]) -> None:
        cells = self.bench.plan.of_task(task.name)
        batch = self._prefill(task, prompts)
        turn = number % len(cells)
        for cell in (*cells[turn:], *cells[:turn]):
            self._run_cell(cell, batch)
        for cell in cells:
            self._run_divergence(cell, batch)

    def _prefill(self, task: TaskConfig, prompts: Sequence[Prompt]) -> list[tuple[Prompt, Prefilled]]:
        """Snapshots of the prompts that can be served; the others are recorded as failed in every cell asked."""
        self.progress.update(self.bar, description=f"{task.name}: prefill")
        ready = []
        for prompt in prompts:
            cells = self.agenda.cells(task, prompt)
            compressors = [compressor for cell in cells if (compressor := make_compressor(cell))]
            started, snapshot, reason = time.perf_counter(), None, ""
            try:
                snapshot = self._snapshot(self.bench.request(task, prompt), compressors)
            except RequestError as error:
                reason = str(error)
            seconds = time.perf_counter() - started if snapshot else 0.0
            if (task.name, prompt.id) not in self.ledger.tails:
                self.ledger.append(recording.prompt_line(task.name, prompt, self.bench.tokenizer, seconds))
            if snapshot is not None:
                ready.append((prompt, snapshot))
                continue
            for cell in cells:
                if self.agenda.owes_answer(cell, prompt):
                    self._record(recording.failed_line(cell, prompt, reason))
        return ready

    def _snapshot(self, request: Request, compressors: Sequence[Compressor[Any]]) -> Prefilled:
        architecture = self.bench.files.architecture
        check_request(request, vocab_size=architecture.vocab_size, max_context=architecture.max_context)
        chunk = self.bench.config.engine.prefill_chunk
        instruct = InstructionWriter(self.bench.tokenizer)
        prefill = prefill_for(compressors, self.decoder, request.prompt_ids, chunk=chunk, instruct=instruct)
        return Prefilled(request, prefill)

    def _run_cell(self, cell: Cell, batch: Sequence[tuple[Prompt, Prefilled]]) -> None:
        task = cell.task.name
        todo = {prompt.id: prompt for prompt, _ in batch if self.agenda.owes_answer(cell, prompt)}
        if not todo:
            return
        self.progress.update(self.bar, description=f"{task}: {cell.label}")
        ended: list[Generation] = []
        recording.reset_peak_rss()

        def record(generation: Generation) -> None:
            ended.append(generation)
            prompt = todo[generation.request_id]
            stop_ids = self.bench.request(cell.task, prompt).stop_ids
            self._record(recording.request_line(cell, prompt, generation, self.bench.tokenizer, stop_ids))

        timing = self.engine(
            self.decoder,
            cell_setup(cell, self.bench.config),
            [snapshot for prompt, snapshot in batch if prompt.id in todo],
            on_end=record,
            stream=lambda: TextStream(self.bench.tokenizer),
        )
        self.ledger.append(recording.batch_line(cell, ended, timing))

    def _record(self, line: RequestLine) -> None:
        self.ledger.append(line)
        self.progress.advance(self.bar)

    def _run_divergence(self, cell: Cell, batch: Sequence[tuple[Prompt, Prefilled]]) -> None:
        todo = [each for each in batch if self.agenda.measurable(cell, each[0])]
        if not todo:
            return
        self.progress.update(self.bar, description=f"{cell.task.name}: divergence of {cell.label}")
        together = [each for each in batch if cell in self.agenda.cells(cell.task, each[0])]
        Divergences(self.agenda, self.engine).measure(self.decoder, cell, together, todo)
        self.progress.advance(self.bar, len(todo))


def _report_exclusions(bench: Workbench, console: Console) -> None:
    """Says how many rows of each task cannot be asked, and names the first."""
    for name, task in bench.sources.items():
        for line in exclusions(name, task, len(bench.prompts[name])):
            console.print(line, markup=False)


def _chunks(prompts: Sequence[Prompt], size: int) -> Iterator[Sequence[Prompt]]:
    for start in range(0, len(prompts), size):
        yield prompts[start : start + size]
