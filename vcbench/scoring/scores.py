"""All outcomes of a run, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vcbench.errors import UsageError
from vcbench.metrics.interval import Estimate, pooled
from vcbench.records.reader import CellInfo, Run
from vcbench.scoring.answers import answered, groups, key_of
from vcbench.scoring.paired import Difference, difference
from vcbench.scoring.resolved import ResolvedSource
from vcbench.scoring.sources import Outcomes, Source, TaskSource
from vcbench.scoring.values import Failure, Outcome, Pair, samples
from vcbench.tasks.base import Metric
from vcbench.tasks.swebench_lite import NAME as SWEBENCH_LITE


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric of one arm over `n` answers in `groups` independent groups (equal unless answers belong together)."""

    metric: Metric
    n: int
    groups: int
    not_applicable: int
    errors: int
    estimate: Estimate | None
    difference: Difference | None = None


@dataclass(slots=True, kw_only=True)
class Section:
    """One source's metrics of one task. `outcomes`: by cell id, metric, request."""

    source: str
    title: str
    metrics: tuple[Metric, ...]
    paired: bool
    missing: str
    outcomes: dict[str, Outcomes] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TaskScores:
    """Everything that was scored of one task. `failed`: requests without an answer, by cell id."""

    task: str
    cells: tuple[CellInfo, ...]
    groups: Mapping[str, str]
    asked: dict[str, list[str]]
    failed: dict[str, int]
    excluded: Sequence[Mapping[str, str]]
    sections: list[Section]
    _figures: dict[tuple[str, str, str, frozenset[str] | None], Figure] = field(default_factory=dict)

    def figure(self, section: Section, metric: Metric, cell: CellInfo, only: frozenset[str] | None = None) -> Figure:
        """The metric over the cell's answers, or over some requests `only`, and against full KV where it is paired."""
        key = (section.source, metric.name, cell.id, only)
        if key not in self._figures:
            self._figures[key] = self._figure(section, metric, cell, only)
        return self._figures[key]

    def _figure(self, section: Section, metric: Metric, cell: CellInfo, only: frozenset[str] | None) -> Figure:
        outcomes = _kept(section.outcomes[cell.id][metric.name], only)
        found = self._samples(metric, cell, outcomes, only)
        baseline = next((each for each in self.cells if each.arm == "full"), None)
        against = None
        if section.paired and baseline is not None and cell.arm != "full":
            theirs = _kept(section.outcomes[baseline.id][metric.name], only)
            against = difference(metric, found, self._samples(metric, baseline, theirs, only))
        errors = sum(isinstance(value, Failure) for value in outcomes.values())
        none = sum(value is None for value in outcomes.values())
        return Figure(
            metric=metric,
            n=len(outcomes) - errors - none,
            groups=len(found),
            not_applicable=none,
            errors=errors,
            estimate=pooled(metric.kind, list(found.values())),
            difference=against,
        )

    def samples(self, section: Section, metric: Metric, cell: CellInfo) -> dict[str, Pair]:
        """The metric's numerators and denominators, by group of the cell's requests."""
        return self._samples(metric, cell, section.outcomes[cell.id][metric.name], None)

    def _samples(
        self, metric: Metric, cell: CellInfo, outcomes: Mapping[str, Outcome], only: frozenset[str] | None
    ) -> dict[str, Pair]:
        wanted = [request for request in self.asked[cell.id] if only is None or request in only]
        return samples(metric, outcomes, self.groups, wanted)

    def errors(self) -> Iterator[tuple[CellInfo, str, str, str]]:
        """(cell, metric, request, reason) of every metric that failed."""
        for section in self.sections:
            for cell in self.cells:
                for metric, outcomes in section.outcomes.get(cell.id, {}).items():
                    for request, value in outcomes.items():
                        if isinstance(value, Failure):
                            yield cell, metric, request, value.message


@dataclass(slots=True, kw_only=True)
class Scores:
    """A run's scores, task by task; `records_sha256` and `code_sha256` say what they were made from and with."""

    run: str
    records_sha256: str
    code_sha256: str
    tasks: list[TaskScores]

    def errors(self) -> int:
        """Metrics that failed, counted by answer."""
        return sum(1 for task in self.tasks for _ in task.errors())


def score_task(run: Run, task: str, sources: Sequence[Source]) -> TaskScores:
    """The outcomes of all sources for every cell of a task."""
    cells = tuple(cell for cell in run.cells if cell.answers(task))
    wanted = {cell.id: run.asked(cell, task) for cell in cells}
    listed = (run.provenance.get("excluded") or {}).get(task) or ()
    return TaskScores(
        task=task,
        cells=cells,
        groups=groups(run, task),
        asked=wanted,
        failed={cell.id: len(wanted[cell.id]) - len(answered(run, cell, task)) for cell in cells},
        excluded=[dict(each) for each in listed],
        sections=[
            Section(
                source=source.name,
                title=source.title,
                metrics=source.metrics,
                paired=source.paired,
                missing=source.missing,
                outcomes={cell.id: source.outcomes(run, cell, task) for cell in cells},
            )
            for source in sources
        ],
    )


def sources_of(run: Run, task: str) -> list[Source]:
    """Every source of metrics, the task's own first."""
    return [TaskSource(run, task), *([ResolvedSource(run)] if task == SWEBENCH_LITE else [])]


def by_key(run: Run, task: str, key: str) -> dict[str, frozenset[str]]:
    """The task's requests by what `meta` has under a key, in order of appearance; numbers in order of size."""
    found: dict[str, set[str]] = {}
    for (prompt_task, request), prompt in run.prompts.items():
        heading = key_of(prompt, key) if prompt_task == task else None
        if heading is not None:
            found.setdefault(heading, set()).add(request)
    return {heading: frozenset(found[heading]) for heading in sorted(found, key=_order)}


def check_key(run: Run, key: str) -> None:
    """Raises UsageError where no prompt's meta has the key, with those that there are."""
    if any(key_of(prompt, key) is not None for prompt in run.prompts.values()):
        return
    if not run.prompts:
        raise UsageError(f"{run.name} has no prompts yet, so none has {key!r} in its meta; finish the run first")
    known = sorted({name for prompt in run.prompts.values() for name in prompt.meta})
    have = f"they have {', '.join(known)}" if known else "it is empty (an earlier vcbench made these records)"
    raise UsageError(f"no prompt has {key!r} in its meta; {have}")


def _order(heading: str) -> tuple[int, float, str]:
    try:
        return 0, float(heading), ""
    except ValueError:
        return 1, 0.0, heading


def _kept(outcomes: Mapping[str, Outcome], only: frozenset[str] | None) -> dict[str, Any]:
    return {request: value for request, value in outcomes.items() if only is None or request in only}
