"""One row of figures per cell and task, from a run's records alone; None where a figure is not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from vcbench.metrics.acceptance import Acceptance, Rounds, acceptance, round_problem
from vcbench.metrics.bytes import Factors, factors
from vcbench.metrics.distribution import Distribution, distribution
from vcbench.metrics.interval import Estimate, mean, ratio
from vcbench.metrics.levels import LevelFigures, full_loads_per_100_tokens, level_figures, level_problem
from vcbench.metrics.text import first_divergence, is_looped, token_f1
from vcbench.metrics.throughput import Throughput, batch_problem, prefill_tokens_per_s, throughput
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import RequestLine


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
    """Every figure of one cell on one task: `n` requests answered without error, of `prompts`."""

    cell: CellInfo
    task: str
    prompts: int
    n: int
    errors: int
    missing: int
    output_tokens: int
    looped: Estimate | None
    at_start: Factors
    at_end: Factors
    divergence: Distribution | None
    agreement: Agreement | None
    acceptance: Acceptance | None
    levels: tuple[LevelFigures, ...]
    full_loads_per_100_tokens: Estimate | None
    committed_per_round: Estimate | None
    speed: Throughput
    speedup: float | None
    prefill_tokens_per_s: Estimate | None
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Nested plain data, for JSON."""
        return asdict(self)


def summarise(run: Run) -> list[CellSummary]:
    """The rows of a run: tasks in order, and within each the cells in the order of the comparison."""
    return [_cell_summary(run, cell, task) for task in run.tasks for cell in run.cells if cell.answers(task)]


def _cell_summary(run: Run, cell: CellInfo, task: str) -> CellSummary:
    prompts = [run.prompts[task, request] for request in run.asked(cell, task)]
    lines = run.requests_of(cell, task)
    answered = [line for line in lines if line.error is None]
    baseline = run.baseline(task)
    speed, problems = _speed(run, cell, task)
    rounds = acceptance(Rounds.of(answered)) if cell.arm == "vericache" else None
    return CellSummary(
        cell=cell,
        task=task,
        prompts=len(prompts),
        n=len(answered),
        errors=len(lines) - len(answered),
        missing=len(prompts) - len(lines),
        output_tokens=sum(len(line.token_ids) for line in answered),
        looped=mean([float(is_looped(line.token_ids)) for line in answered]),
        at_start=factors(answered, "kv_start"),
        at_end=factors(answered, "kv_end"),
        divergence=distribution([line for key, line in run.divergences.items() if key[:2] == (cell.id, task)]),
        agreement=_agreement(run, answered, baseline) if baseline is not None and cell.arm != "full" else None,
        acceptance=rounds,
        levels=level_figures(answered),
        full_loads_per_100_tokens=full_loads_per_100_tokens(answered),
        committed_per_round=_committed_per_round(answered) if rounds is not None else None,
        speed=speed,
        speedup=_speedup(run, speed, baseline, task),
        prefill_tokens_per_s=prefill_tokens_per_s(prompts),
        problems=tuple(_problems(cell, lines) + problems),
    )


def _speed(run: Run, cell: CellInfo, task: str) -> tuple[Throughput, list[str]]:
    batches = [batch for batch in run.batches if (batch.cell, batch.task) == (cell.id, task)]
    requests = {line.request: line for line in run.requests_of(cell, task)}
    found = [problem for batch in batches if (problem := batch_problem(batch, requests))]
    problems = [f"{cell.label}, task {task}: {problem}" for problem in found]
    return throughput(batches, requests), problems


def _speedup(run: Run, speed: Throughput, baseline: CellInfo | None, task: str) -> float | None:
    """Decode tokens/s over full KV's on the same task of the same run."""
    if baseline is None or speed.decode_tokens_per_s is None:
        return None
    reference = _speed(run, baseline, task)[0].decode_tokens_per_s
    return speed.decode_tokens_per_s.value / reference.value if reference is not None and reference.value > 0 else None


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
        exact=mean([float(fork is None) for fork in forks]),
    )


def _committed_per_round(answered: Sequence[RequestLine]) -> Estimate | None:
    return ratio([float(sum(line.committed)) for line in answered], [float(len(line.committed)) for line in answered])


def _problems(cell: CellInfo, lines: Sequence[RequestLine]) -> list[str]:
    """Requests that failed, and records that contradict themselves."""
    found = []
    for line in lines:
        what = line.error or (round_problem(line) or level_problem(line) if cell.arm == "vericache" else "")
        if what:
            found.append(f"{cell.label}, task {line.task}, request {line.request}: {what}")
    return found
