"""`vcbench show`: one request of a run, in every cell; or which requests there are."""

from __future__ import annotations

from typing import Annotated

import typer

from vcbench.cli.completion import complete_request, complete_run, complete_task
from vcbench.cli.output import next_command, results
from vcbench.cli.runs import find_run


def show(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run's directory, or its name under runs/.", autocompletion=complete_run),
    ],
    request: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The request's id within its task; all ids are listed without it.",
            autocompletion=complete_request,
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Of this task only.", autocompletion=complete_task)] = None,
) -> None:
    """Show one request: every cell's answer, where it leaves full KV's, its rounds, divergence and bytes.

    Without --request it lists the requests, and in which cells their answers are not full KV's.
    """
    from vcbench.records.reader import load_run
    from vcbench.report.requests import list_requests
    from vcbench.report.show import show_request

    loaded = load_run(find_run(run))
    if request is not None:
        show_request(loaded, request, results(), task=task)
        next_command("vcbench", "check", loaded.path)
        return
    first = list_requests(loaded, results(), task=task)
    if first is None:
        next_command("vcbench", "runs")
    else:
        next_command("vcbench", "show", loaded.path, "--request", first)
