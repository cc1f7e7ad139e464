"""One row of figures per cell and task, from a run's records alone; None where a figure is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from vcbench.metrics.acceptance import Acceptance, Rounds, acceptance, request_problem
from vcbench.metrics.batches import paired_batches, timed_batches
from vcbench.metrics.bytes import Factors, factors
from vcbench.metrics.distribution import Distribution, distribution
from vcbench.metrics.interval import Estimate, bootstrap, mean, share
from vcbench.metrics.levels import LevelFigures, level_figures, level_problem
from vcbench.metrics.load import Load, load_of
from vcbench.metrics.measures import MEASURES, NEVER, answers
from vcbench.metrics.text import first_divergence, token_f1
from vcbench.metrics.throughput import Throughput, batch_problem, throughput
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import BatchLine, RequestLine

NEVER_WORD = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A cell's outputs against full KV's, over `n` requests that both answered.

    first_divergence: median index of the first differing token among the `diverged` requests; None if none differs.
    """

    n: int
    diverged: int
    first_divergence: float | None
    token_f1: Estimate | None
    exact: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummary:
    """Every figure of one cell on one task: `n` requests answered without error, of `prompts`.

    measures: by name, those of `measures.py`. batches: of the cell; paired: of these, those whose requests full KV
    decoded together too, which alone enter a speed-up. load: of the machine meanwhile.
    """

    cell: CellInfo
    task: str
    prompts: int
    n: int
    errors: int
    missing: int
    output_tokens: int
    measures: Mapping[str, Estimate | None]
    at_start: Factors
    at_end: Factors
    divergence: Distribution | None
    agreement: Agreement | None
    acceptance: Acceptance | None
    levels: tuple[LevelFigures, ...]
    speed: Throughput
    batches: int
    paired: int
    load: Load | None
    prefill_tokens_per_s: Estimate | None
    problems: tuple[str, ...]

    @property
    def speedup(self) -> Estimate | None:
        """Decode tokens/s over full KV's, over batches of the same requests."""
        return self.measures["speedup"]

    def as_dict(self) -> dict[str, Any]:
        """Nested plain data, for JSON; a length that does not exist is `never`, not null."""
        found = asdict(self)
        return found | {"measures": {name: estimate_dict(each) for name, each in self.measures.items()}}


def estimate_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    """Value, interval and n as plain data; infinity, which JSON does not have, is the word `never`."""
    if estimate is None:
        return None
    return {name: NEVER_WORD if value == NEVER else value for name, value in asdict(estimate).items()}


def summarise(run: Run) -> list[CellSummary]:
    """The rows of a run: tasks in order, and within each the cells in the order of the comparison."""
    return [_cell_summary(run, cell, task) for task in run.tasks for cell in run.cells if cell.answers(task)]


def _cell_summary(run: Run, cell: CellInfo, task: str) -> CellSummary:
    prompts = [run.prompts[task, request] for request in run.asked(cell, task)]
    lines = run.requests_of(cell, task)
    answered = [line for line in lines if line.error is None]
    baseline = run.baseline(task)
    batches = [batch for batch in run.batches if (batch.cell, batch.task) == (cell.id, task)]
    requests = {line.request: line for line in lines}
    rounds = acceptance(Rounds.of(answered)) if cell.arm == "vericache" else None
    return CellSummary(
        cell=cell,
        task=task,
        prompts=len(prompts),
        n=len(answered),
        errors=len(lines) - len(answered),
        missing=len(prompts) - len(lines),
        output_tokens=sum(len(line.token_ids) for line in answered),
        measures={name: measure.estimate(run, cell, task) for name, measure in MEASURES.items()},
        at_start=factors(answered, "kv_start"),
        at_end=factors(answered, "kv_end"),
        divergence=distribution([line for key, line in run.divergences.items() if key[:2] == (cell.id, task)]),
        agreement=_agreement(run, answered, baseline) if baseline is not None and cell.arm != "full" else None,
        acceptance=rounds,
        levels=level_figures(answered),
        speed=throughput(batches, requests),
        batches=len(timed_batches(run, cell, task)),
        paired=len(paired_batches(run, cell, task)),
        load=load_of(batches),
        prefill_tokens_per_s=_prefill_tokens_per_s(run, cell, task),
        problems=tuple(_problems(cell, lines) + _batch_problems(cell, task, batches, requests)),
    )


def _prefill_tokens_per_s(run: Run, cell: CellInfo, task: str) -> Estimate | None:
    """Prompt tokens over the seconds in which the cell by itself would have prefilled them."""
    known = [
        (float(len(run.prompts[task, line.request].prompt_ids)), line.timing["prefill_s"])
        for line in answers(run, cell, task).values()
        if line.timing.get("prefill_s", 0.0) > 0
    ]
    return bootstrap(known)


def _batch_problems(
    cell: CellInfo, task: str, batches: Sequence[BatchLine], requests: Mapping[str, RequestLine]
) -> list[str]:
    found = [problem for batch in batches if (problem := batch_problem(batch, requests))]
    return [f"{cell.label}, task {task}: {problem}" for problem in found]


def _agreement(run: Run, answered: Sequence[RequestLine], baseline: CellInfo) -> Agreement:
    pairs = [
        (full.token_ids, line.token_ids)
        for line in answered
        if (full := run.requests.get((baseline.id, line.task, line.request))) is not None and full.error is None
    ]
    forks = [first_divergence(full, other) for full, other in pairs]
    diverged = [fork for fork in forks if fork is not None]
    return Agreement(
        n=len(pairs),
        diverged=len(diverged),
        first_divergence=float(median(diverged)) if diverged else None,
        token_f1=mean([token_f1(full, other) for full, other in pairs]),
        exact=share(len(pairs) - len(diverged), len(pairs)),
    )


def _problems(cell: CellInfo, lines: Sequence[RequestLine]) -> list[str]:
    """Requests that failed, and records that contradict themselves."""
    found = []
    for line in lines:
        what = request_problem(line, cell) or (level_problem(line) if cell.arm == "vericache" else "")
        if what:
            found.append(f"{cell.label}, task {line.task}, request {line.request}: {what}")
    return found
