"""`vcbench score` for a reader: each metric in each arm, its difference to full KV, and what n answers say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from vcbench.metrics.interval import Estimate
from vcbench.records.printable import never_fail, printable
from vcbench.records.reader import CellInfo, Run
from vcbench.report.columns import number, percent
from vcbench.report.table import STYLES, UNKNOWN, Column, fit, print_whole, say
from vcbench.scoring.paired import Difference, Verdict
from vcbench.scoring.scores import Figure, Scores, Section, TaskScores, by_key
from vcbench.tasks.base import Metric

SHOWN = 10
"""Errors and exclusions listed by name."""
NOISE = 1e-12
"""What rounding leaves of a difference that is none."""
BOUND_DIGITS = 2
"""Of an interval's bounds, which are themselves estimates."""
Row = tuple[str, str, CellInfo, Figure]
"""Heading of the group of requests (empty for all), title of the section, cell, figure."""


def rows(run: Run, task: TaskScores, section: Section, *, by: str | None = None) -> Iterator[Row]:
    """The section's figures, metric by metric; with `by`, those of each value of that key of the prompts' meta."""
    parts: Mapping[str, frozenset[str] | None] = by_key(run, task.task, by) if by else {"": None}
    for metric in section.metrics:
        for heading, only in parts.items():
            for cell in task.cells:
                figure = task.figure(section, metric, cell, only)
                if figure.n or figure.errors or section.paired:
                    yield heading, section.title, cell, figure


def print_scores(run: Run, scores: Scores, console: Console, *, by: str | None = None) -> None:
    """Every task's tables, then what was excluded, what failed and what is not available."""
    never_fail(console.file)
    for task in newest_first(run, scores.tasks):
        requests = {request for wanted in task.asked.values() for request in wanted}
        excluded = f", {len(task.excluded)} excluded" if task.excluded else ""
        say(console, f"task {task.task}: {len(requests)} prompts{excluded}", style="bold")
        for section in task.sections:
            if section.metrics:
                _print_section(run, task, section, console, by)
            if section.missing:
                say(console, f"  {section.title}: {section.missing}")
        for line in _remarks(task):
            say(console, line)


def newest_first(run: Run, tasks: Sequence[TaskScores]) -> list[TaskScores]:
    """The task whose prompts were recorded last comes first."""
    last = {task: number for number, (task, _) in enumerate(run.prompts)}
    return sorted(tasks, key=lambda task: last.get(task.task, -1), reverse=True)


def _print_section(run: Run, task: TaskScores, section: Section, console: Console, by: str | None) -> None:
    every = list(rows(run, task, section, by=by))
    valued = {figure.metric.name for _, _, _, figure in every if figure.n or figure.errors}
    found = [row for row in every if row[3].metric.name in valued]
    say(console, section.title, style="italic")
    if not found:
        say(console, f"  no answer has a value{f' under meta key {by!r}' if by else ''}")
        return
    fitted = fit(_columns(found, by), console)
    print_whole(console, fitted.table)
    say(console, fitted.legend(), style="dim")
    if fitted.hidden:
        say(console, f"not shown at this width, but by --csv: {', '.join(fitted.hidden)}", style="dim")
    if without := dict.fromkeys(row[3].metric.name for row in every if row[3].metric.name not in valued):
        say(console, f"no answer has a value of {', '.join(map(printable, without))}", style="dim")


Line = tuple[str, str, CellInfo | None, Figure | None]
"""A line of the table: its words, heading, cell and figure; a line that only names a metric has no figure."""


def _columns(found: Sequence[Row], by: str | None) -> list[Column]:
    """The metric is a line of its own above those of its cells, so that it costs no width."""
    lines: list[Line] = []
    named = ""
    for heading, _, cell, figure in found:
        if figure.metric.name != named:
            named = figure.metric.name
            lines.append((named, "", None, None))
        lines.append((f"  {cell.label}", heading, cell, figure))
    words = [line for line, _, _, _ in lines]
    styles = ["bold" if cell is None else STYLES.get(cell.arm, "") for _, _, cell, _ in lines]
    figures = [figure for _, _, _, figure in lines]
    failed = any(figure is not None and figure.errors for figure in figures)
    columns = [Column(key="cell", header="metric\n  cell", rank=0, cells=words, label=True, styles=styles)]
    if by is not None:
        columns.append(Column(key=by, header=by, rank=0, cells=[heading for _, heading, _, _ in lines], label=True))
    for key, header, rank, text, short, legend in FIGURES:
        cells = [text(figure) if figure is not None else "" for figure in figures]
        shorter = [short(figure) if figure is not None else "" for figure in figures] if short is not None else None
        fixed = 0 if key == "err" and failed else rank
        columns.append(
            Column(
                key=key,
                header=header,
                rank=fixed,
                cells=cells,
                short=shorter,
                legend=legend,
                words=key == "verdict",
            )
        )
    return columns


def _counted(figure: Figure) -> str:
    return str(figure.n) if figure.groups == figure.n else f"{figure.n} ({figure.groups})"


def _flips(figure: Figure) -> str:
    found = figure.difference
    return "" if found is None or found.to_wrong is None or not found.n else f"{found.to_wrong}/{found.to_right}"


def _p(figure: Figure) -> str:
    return "" if figure.difference is None or figure.difference.p is None else number(figure.difference.p, 2)


Shown = Callable[[Figure], str]
FIGURES: tuple[tuple[str, str, float, Shown, Shown | None, str], ...] = (
    ("value", "value", 0, lambda each: value_text(each.metric, each.estimate), None, ""),
    ("n", "n", 1, _counted, None, "n: answers with a value (independent groups of them)"),
    (
        "less",
        "less full KV",
        0,
        lambda each: "" if each.difference is None else difference_text(each.metric, each.difference),
        None,
        "",
    ),
    (
        "verdict",
        "verdict",
        0,
        lambda each: "" if each.difference is None else verdict_text(each.difference),
        lambda each: "" if each.difference is None else short_verdict(each.difference),
        "too few +N: about N more pairs would tell",
    ),
    ("wrong_right", "wrong/\nright", 2, _flips, None, "wrong/right: flips from full KV to the worse/better value"),
    ("p", "p", 3, _p, None, ""),
    ("n/a", "n/a", 4, lambda each: str(each.not_applicable or ""), None, "n/a: the metric does not apply"),
    ("err", "err", 5, lambda each: str(each.errors or ""), None, "err: it failed"),
)


def value_text(metric: Metric, estimate: Estimate | None) -> str:
    """The value with its interval; shares in per cent."""
    if estimate is None:
        return UNKNOWN
    if metric.kind != "share":
        return f"{number(estimate.value)}{_interval(estimate, 1.0)}"
    return f"{percent(estimate)} %{_interval(estimate, 100.0)}"


def difference_text(metric: Metric, found: Difference) -> str:
    """The paired difference with its interval; that of shares in percentage points."""
    if found.estimate is None:
        return UNKNOWN
    scale = 100.0 if metric.kind == "share" else 1.0
    value = found.estimate.value * scale
    return f"{_signed(value)}{_interval(found.estimate, scale, signed=True)}"


def verdict_text(found: Difference) -> str:
    """The verdict in words, with what it would take where it is open."""
    match found.verdict:
        case Verdict.SAME:
            bound = f" (changes below {100 * found.flips_below:.0f} %)" if found.flips_below is not None else ""
            return f"same in all {found.n}{bound}"
        case Verdict.TOO_FEW if found.more is not None:
            return f"too few samples to tell: about {found.more:,} more"
    return str(found.verdict)


def short_verdict(found: Difference) -> str:
    """The verdict in at most a dozen characters."""
    match found.verdict:
        case Verdict.SAME:
            return "same"
        case Verdict.TOO_FEW:
            return "too few" if found.more is None else f"too few +{found.more:,}"
        case Verdict.NOTHING:
            return "no pairs"
    return str(found.verdict)


def _interval(estimate: Estimate, scale: float, *, signed: bool = False) -> str:
    # A bootstrap of equal values has no width, which says nothing about others.
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return ""
    low, high = (scale * value for value in (estimate.low, estimate.high))
    if scale == 100.0 and not signed:
        return f" [{low:.0f}, {high:.0f}]"
    shown = _signed if signed else number
    return f" [{shown(low, BOUND_DIGITS)}, {shown(high, BOUND_DIGITS)}]"


def _signed(value: float, digits: int = 3) -> str:
    value = 0.0 if abs(value) < NOISE else value
    text = number(abs(value), digits)
    return text if value == 0 else f"{'+' if value > 0 else '-'}{text}"


def _remarks(task: TaskScores) -> Iterator[str]:
    """Failed requests, exclusions and errors of metrics; the first of each by name, all of them counted."""
    for cell in task.cells:
        if failed := task.failed[cell.id]:
            noun = "request has" if failed == 1 else "requests have"
            yield f"! {printable(cell.label)}: {failed} {noun} no answer, or failed, and enter no figure"
    listed = [f"excluded {each.get('id')}: {each.get('reason')}" for each in task.excluded]
    errors = [f"! {cell.label}, {metric}, {request}: {reason}" for cell, metric, request, reason in task.errors()]
    for lines in (listed, errors):
        yield from map(printable, lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"and {len(lines) - SHOWN} more of these (--json lists all)"


def flat_rows(run: Run, scores: Scores, *, by: str | None = None) -> list[dict[str, Any]]:
    """Every figure as one flat row."""
    return [
        _flat(run, task, section, heading, cell, figure, by)
        for task in scores.tasks
        for section in task.sections
        for heading, _, cell, figure in rows(run, task, section, by=by)
    ]


def _flat(
    run: Run, task: TaskScores, section: Section, heading: str, cell: CellInfo, figure: Figure, by: str | None
) -> dict[str, Any]:
    found, value = figure.difference, figure.estimate
    less = found.estimate if found is not None else None
    return {
        "run": run.name,
        "task": task.task,
        "cell": cell.id,
        "label": cell.label,
        "arm": cell.arm,
        "source": section.source,
        "metric": figure.metric.name,
        "kind": figure.metric.kind,
        **({"key": by, "key_value": heading} if by else {}),
        "n": figure.n,
        "groups": figure.groups,
        "not_applicable": figure.not_applicable,
        "errors": figure.errors,
        "value": value.value if value else None,
        "low": value.low if value else None,
        "high": value.high if value else None,
        "difference": less.value if less else None,
        "difference_low": less.low if less else None,
        "difference_high": less.high if less else None,
        "pairs": found.n if found else None,
        "to_wrong": found.to_wrong if found else None,
        "to_right": found.to_right if found else None,
        "p": found.p if found else None,
        "verdict": str(found.verdict) if found else None,
        "more": found.more if found else None,
    }
