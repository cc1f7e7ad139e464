"""`vcbench show`: one request of a run, in every cell."""

from __future__ import annotations

from typing import Annotated

import typer

from vcbench.cli.output import next_command, results
from vcbench.cli.runs import find_run


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name under runs/.")],
    request: Annotated[str, typer.Option(metavar="ID", help="The request's id within its task.")],
    task: Annotated[str | None, typer.Option(help="Of this task only.")] = None,
) -> None:
    """Show one request: every cell's answer, where it leaves full KV's, its rounds, divergence and bytes."""
    from vcbench.report.show import show_request

    path = find_run(run)
    show_request(path, request, results(), task=task)
    next_command(f"vcbench check {path}")
