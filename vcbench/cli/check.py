"""`vcbench check`: the lossless gate over a run."""

from __future__ import annotations

from typing import Annotated

import typer

from vcbench.cli.output import next_command, results, write_json
from vcbench.cli.runs import find_run


def check(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name under runs/.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say whether every VeriCache answer equals full KV's. Exit code 0 pass, 1 fail, 2 vacuous, 3 not comparable."""
    from vcbench.lossless.check import check_run, render

    path = find_run(run)
    result = check_run(path)
    if as_json:
        write_json(result.as_dict())
    else:
        render(result, results())
        next_command(f"vcbench compare {path}" if result.exit_code == 0 else f"vcbench show {path} --request ID")
    if result.exit_code:
        raise typer.Exit(result.exit_code)
