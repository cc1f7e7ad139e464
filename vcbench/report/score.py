"""`vcbench score` for a reader: each metric in each arm, its difference to full KV, and what n answers say of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vcbench.metrics.interval import Estimate
from vcbench.records.printable import never_fail, printable
from vcbench.records.reader import CellInfo, Run
from vcbench.report.columns import UNKNOWN, number, percent
from vcbench.report.table import STYLES, print_whole
from vcbench.scoring.paired import Difference, Verdict
from vcbench.scoring.scores import Figure, Scores, Section, TaskScores, by_key
from vcbench.tasks.base import Metric

SHOWN = 10
"""Errors and exclusions listed by name."""
NOISE = 1e-12
"""What rounding leaves of a difference that is none."""
LEGEND = (
    "[ ]: 95 %; n: answers with a value (groups of them in brackets); n/a: the metric does not apply; err: it failed; "
    "wrong/right: flips from full KV"
)

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
    for task in scores.tasks:
        requests = {request for wanted in task.asked.values() for request in wanted}
        excluded = f", {len(task.excluded)} excluded" if task.excluded else ""
        _say(console, f"task {task.task}: {len(requests)} prompts{excluded}", style="bold")
        for section in task.sections:
            if section.metrics:
                _print_section(run, task, section, console, by)
            if section.missing:
                _say(console, f"  {section.title}: {section.missing}")
        _say(console, LEGEND, style="dim")
        for line in _remarks(task):
            _say(console, line)


def _print_section(run: Run, task: TaskScores, section: Section, console: Console, by: str | None) -> None:
    found = list(rows(run, task, section, by=by))
    _say(console, section.title, style="italic")
    if not found:
        _say(console, f"  no answer has a value{f' under meta key {by!r}' if by else ''}")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    numeric = ["n", "n/a", "err"]
    headers = ["metric", *([by] if by else []), "cell", "value", *numeric]
    if section.paired:
        headers += ["less full KV", "wrong/\nright", "p", "verdict"]
    for header in headers:
        left = header in ("metric", "cell", "verdict", by)
        table.add_column(header, justify="left" if left else "right", no_wrap=True, vertical="bottom")
    last = ""
    for heading, _, cell, figure in found:
        name = figure.metric.name if figure.metric.name != last else ""
        last = figure.metric.name
        table.add_row(*_cells(name, heading if by else None, cell, figure, paired=section.paired))
    print_whole(console, table)


def _cells(name: str, heading: str | None, cell: CellInfo, figure: Figure, *, paired: bool) -> list[Text]:
    counted = str(figure.n) if figure.groups == figure.n else f"{figure.n} ({figure.groups})"
    texts = [name, *([heading] if heading is not None else [])]
    made = [Text(printable(text)) for text in texts]
    made.append(Text(printable(cell.label), style=STYLES.get(cell.arm, "")))
    made.append(Text(value_text(figure.metric, figure.estimate)))
    made += [Text(counted), *(Text(str(count) if count else "") for count in (figure.not_applicable, figure.errors))]
    if paired:
        found = figure.difference
        if found is None:
            made += [Text("")] * 4
        else:
            flips = "" if found.to_wrong is None or not found.n else f"{found.to_wrong}/{found.to_right}"
            p = "" if found.p is None else number(found.p, 2)
            made += [Text(difference_text(figure.metric, found)), Text(flips), Text(p), Text(verdict_text(found))]
    return made


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


def _interval(estimate: Estimate, scale: float, *, signed: bool = False) -> str:
    # A bootstrap of equal values has no width, which says nothing about others.
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return ""
    shown = _signed if signed else number
    low, high = (scale * value for value in (estimate.low, estimate.high))
    if scale == 100.0 and not signed:
        return f" [{low:.0f}, {high:.0f}]"
    return f" [{shown(low)}, {shown(high)}]"


def _signed(value: float) -> str:
    value = 0.0 if abs(value) < NOISE else value
    text = number(abs(value))
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


def csv_rows(run: Run, scores: Scores, *, by: str | None = None) -> list[dict[str, Any]]:
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


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
