"""`vcbench show RUN`: the requests of a run, one row each, with the cells whose answers are not full KV's."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vcbench.errors import UsageError
from vcbench.records.printable import printable
from vcbench.records.reader import Run
from vcbench.records.schema import PromptLine
from vcbench.registry import suggest


def list_requests(run: Run, console: Console, *, task: str | None = None) -> str | None:
    """Prints the requests of the run, or of one task, and returns the id worth a look first; None without any.

    Raises UsageError for a task that the run has not.
    """
    if task is not None and task not in run.tasks:
        known = suggest(task, run.tasks) if run.tasks else "it has none"
        raise UsageError(f"{run.path} has no task {printable(task)!r}; {known}")
    prompts = [line for line in run.prompts.values() if task in (None, line.task)]
    if not prompts:
        console.print(Text(f"{run.path} has no prompts yet"))
        return None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("task", "request"):
        table.add_column(name, overflow="fold")
    table.add_column("prompt tokens", justify="right")
    table.add_column("answers", justify="right")
    table.add_column("not full KV's in", overflow="fold")
    first: str | None = None
    first_differs = False
    for prompt in prompts:
        asked = [cell for cell in run.cells if cell.answers(prompt.task)]
        count = sum((cell.id, prompt.task, prompt.request) in run.requests for cell in asked)
        others = _others(run, prompt)
        tidy = printable(prompt.request) == prompt.request
        if tidy and (first is None or (others and not first_differs)):
            first, first_differs = prompt.request, bool(others)
        table.add_row(
            printable(prompt.task),
            printable(prompt.request),
            f"{len(prompt.prompt_ids):,}",
            f"{count} of {len(asked)}",
            ", ".join(map(printable, others)) or "-",
        )
    console.print(table)
    return first


def _others(run: Run, prompt: PromptLine) -> list[str]:
    """Labels of the cells that failed, or gave other tokens than full KV."""
    baseline = run.baseline(prompt.task)
    full = run.requests.get((baseline.id, prompt.task, prompt.request)) if baseline is not None else None
    found = []
    for cell in run.cells:
        line = run.requests.get((cell.id, prompt.task, prompt.request))
        if line is None or not cell.answers(prompt.task):
            continue
        if line.error is not None or (full is not None and line.token_ids != full.token_ids):
            found.append(cell.label)
    return found
