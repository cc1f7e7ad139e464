"""Carries out a run: for each batch of prompts one prefill, then every cell in turn, then the divergences.

Cells change places from batch to batch, so that no arm always runs first. What the records already hold is not run
again; what runs is recorded as it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vcbench.backends.bundled.compiling import announced
from vcbench.backends.bundled.divergences import Divergences
from vcbench.backends.bundled.warmup import warm_up
from vcbench.compressors.base import Compressor, prefill_for
from vcbench.config.schema import Exactness, RunConfig, TaskConfig
from vcbench.engine.decoding.session import Prefilled, RunCell, run_cell
from vcbench.engine.decoding.stopping import check_request
from vcbench.engine.environment import set_threads
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Generation, Request
from vcbench.errors import RequestError
from vcbench.models.instruction import InstructionWriter
from vcbench.models.tokenizer import TextStream
from vcbench.records.schema import PromptLine, RequestLine
from vcbench.records.store import RunDirectory
from vcbench.runners import recording
from vcbench.runners.directory import open_run
from vcbench.runners.neighbours import Neighbours
from vcbench.runners.plan import Cell
from vcbench.runners.setup import Workbench, cell_setup, load, make_compressor, prepare
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
        _report_exclusions(bench, console)
        runner = _Runner(bench, run, console, engine)
        with announced(console):
            runner.run()
        run.finish()
        runner.report_failures()
    return run.path


class _Runner:
    """One run in progress."""

    def __init__(self, bench: Workbench, run: RunDirectory, console: Console, engine: RunCell) -> None:
        self.bench, self.directory, self.console, self.engine = bench, run, console, engine
        self.prompted: set[tuple[str, str]] = set()
        self.answers: dict[tuple[str, str, str], list[int] | None] = {}
        self.failures: dict[tuple[str, str], str] = {}
        self.turns = Turns(bench, run)
        self.divergences = Divergences(bench, run, engine)
        for line in run.lines():
            self.turns.note(line)
            self.divergences.note(line)
            if isinstance(line, PromptLine):
                self.prompted.add((line.task, line.request))
            elif isinstance(line, RequestLine):
                self._note(line)

    def run(self) -> None:
        batches = [
            (number, task, prompts)
            for task in self.bench.config.tasks
            for number, prompts in enumerate(_chunks(self.bench.prompts[task.name], self._batch_size))
        ]
        missing = sum(self._missing(task, prompt) for _, task, prompts in batches for prompt in prompts)
        if not missing and not self._unfinished_turns():
            self.console.print(f"{self.directory.path} is complete; nothing to run")
            return
        decoder, _ = load(self.bench.files, self.bench.identity, self._exactness)
        warm_up(decoder, self.bench.plan)
        with self._progress() as progress:
            self.progress, self.bar = progress, progress.add_task("prefill", total=missing)
            for number, task, prompts in batches:
                self._run_turns(decoder, number, task, prompts)

    def _unfinished_turns(self) -> bool:
        tasks = {task.name: task for task in self.bench.config.tasks}
        follow_ups = [(tasks[task], prompt) for (task, _), prompt in self.turns.prompts.items()]
        return self.turns.unfinished() or any(self._missing(task, prompt) for task, prompt in follow_ups)

    def _run_turns(self, decoder: Decoder, number: int, task: TaskConfig, prompts: Sequence[Prompt]) -> None:
        """A batch of prompts, and then in batches whatever their answers lead to."""
        if any(self._missing(task, prompt) for prompt in prompts):
            self._run_batch(decoder, number, task, prompts)
        for batch in _chunks(self.turns.after(task, prompts), self._batch_size):
            more = sum(self._missing(task, prompt) for prompt in batch)
            self.progress.update(self.bar, total=(self.progress.tasks[self.bar].total or 0) + more)
            self._run_turns(decoder, number, task, batch)

    @property
    def _batch_size(self) -> int:
        return self.bench.config.engine.batch_size

    @property
    def _exactness(self) -> Exactness:
        return self.bench.config.engine.exactness

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)

    def _missing(self, task: TaskConfig, prompt: Prompt) -> int:
        """How many lines this prompt still owes."""
        cells = self.turns.cells(task, prompt)
        answers = sum((cell.id, task.name, prompt.id) not in self.answers for cell in cells)
        return answers + sum(self.divergences.owed(cell, prompt, cells) for cell in cells)

    def _run_batch(self, decoder: Decoder, number: int, task: TaskConfig, prompts: Sequence[Prompt]) -> None:
        cells = self.bench.plan.of_task(task.name)
        batch = self._prefill(decoder, task, [prompt for prompt in prompts if self._missing(task, prompt)])
        turn = number % len(cells)
        for cell in (*cells[turn:], *cells[:turn]):
            self._run_cell(decoder, cell, batch)
        for cell in cells:
            self._run_divergence(decoder, cell, batch)

    def _prefill(self, decoder: Decoder, task: TaskConfig, prompts: Sequence[Prompt]) -> list[tuple[Prompt, Prefilled]]:
        """Snapshots of the prompts that can be served; the others are recorded as failed in every cell asked."""
        self.progress.update(self.bar, description=f"{task.name}: prefill")
        ready = []
        for prompt in prompts:
            cells = self.turns.cells(task, prompt)
            compressors = [compressor for cell in cells if (compressor := make_compressor(cell))]
            snapshot = None
            request = self.bench.request(task, prompt)
            try:
                snapshot = self._snapshot(decoder, request, compressors)
            except RequestError as error:
                reason = str(error)
            if (task.name, prompt.id) not in self.prompted:
                seconds = snapshot.prefill.time.total_s if snapshot and snapshot.prefill.time else 0.0
                line = recording.prompt_line(task.name, prompt, self.bench.tokenizer, seconds)
                self.directory.append(line)
                self.turns.note(line)
            if snapshot is not None:
                ready.append((prompt, snapshot))
                continue
            for cell in cells:
                if (cell.id, task.name, prompt.id) not in self.answers:
                    self._record(recording.failed_line(cell, prompt, reason))
        return ready

    def _snapshot(self, decoder: Decoder, request: Request, compressors: Sequence[Compressor[Any]]) -> Prefilled:
        architecture = self.bench.files.architecture
        check_request(request, vocab_size=architecture.vocab_size, max_context=architecture.max_context)
        chunk = self.bench.config.engine.prefill_chunk
        instruct = InstructionWriter(self.bench.tokenizer)
        prefill = prefill_for(compressors, decoder, request.prompt_ids, chunk=chunk, instruct=instruct)
        return Prefilled(request, prefill)

    def _run_cell(self, decoder: Decoder, cell: Cell, batch: Sequence[tuple[Prompt, Prefilled]]) -> None:
        task = cell.task.name
        asked = [prompt for prompt, _ in batch if cell in self.turns.cells(cell.task, prompt)]
        todo = {prompt.id: prompt for prompt in asked if (cell.id, task, prompt.id) not in self.answers}
        if not todo:
            return
        self.progress.update(self.bar, description=f"{task}: {cell.label}")
        ended: list[Generation] = []
        compressor = make_compressor(cell)
        prefill_s = {prompt.id: recording.prefill_alone(snapshot.prefill, compressor) for prompt, snapshot in batch}
        recording.reset_peak_rss()
        neighbours = Neighbours()

        def record(generation: Generation) -> None:
            ended.append(generation)
            prompt = todo[generation.request_id]
            stop_ids = self.bench.request(cell.task, prompt).stop_ids
            seconds = prefill_s[prompt.id]
            self._record(recording.request_line(cell, prompt, generation, self.bench.tokenizer, stop_ids, seconds))

        timing = self.engine(
            decoder,
            cell_setup(cell, self.bench.config),
            [snapshot for prompt, snapshot in batch if prompt.id in todo],
            on_end=record,
            stream=lambda: TextStream(self.bench.tokenizer),
        )
        self.directory.append(recording.batch_line(cell, ended, timing, neighbours.timing()))

    def _record(self, line: RequestLine) -> None:
        self.directory.append(line)
        self._note(line)
        self.progress.advance(self.bar)

    def _note(self, line: RequestLine) -> None:
        """Remembers an answer, or why there is none."""
        self.turns.note(line)
        self.divergences.note(line)
        failed = line.finish_reason == "error"
        self.answers[line.cell, line.task, line.request] = None if failed else list(line.token_ids)
        if failed:
            self.failures.setdefault((line.task, line.request), line.error or "no reason given")

    def report_failures(self) -> None:
        """Says which requests failed in some cell, and the first one's reason."""
        if not self.failures:
            return
        total = sum(map(len, self.bench.prompts.values())) + len(self.turns.asked)
        reason = next(iter(self.failures.values()))
        self.console.print(f"FAILED: {len(self.failures)} of {total} requests; the first: {reason}", markup=False)

    def _run_divergence(self, decoder: Decoder, cell: Cell, batch: Sequence[tuple[Prompt, Prefilled]]) -> None:
        asked = {prompt.id: self.turns.cells(cell.task, prompt) for prompt, _ in batch}
        owed = [each for each in batch if self.divergences.owed(cell, each[0], asked[each[0].id])]
        todo = [each for each in owed if self.divergences.answered(cell, each[0])]
        if not todo:
            return
        self.progress.update(self.bar, description=f"{cell.task.name}: divergence of {cell.label}")
        together = [each for each in batch if cell in asked[each[0].id]]
        self.divergences.measure(decoder, cell, together, todo)
        self.progress.advance(self.bar, len(todo))


def _report_exclusions(bench: Workbench, console: Console) -> None:
    """Says how many rows of each task cannot be asked, and names the first."""
    for name, task in bench.sources.items():
        if task.excluded:
            first = task.excluded[0]
            total = len(task.excluded) + len(bench.prompts[name])
            count = f"task {name}: {len(task.excluded)} of {total} rows excluded"
            console.print(f"{count}; the first: {first.id}: {first.reason}", markup=False)


def _chunks(prompts: Sequence[Prompt], size: int) -> Iterator[Sequence[Prompt]]:
    for start in range(0, len(prompts), size):
        yield prompts[start : start + size]
