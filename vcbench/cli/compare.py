"""`vcbench compare`: the cells of one or more runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vcbench.cli.completion import complete_run
from vcbench.cli.output import results
from vcbench.cli.runs import find_run


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Runs' directories, or their names under runs/.", autocompletion=complete_run
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Every figure of every cell, as CSV on stdout.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="The table for a pull request.")] = False,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every figure of every cell as Parquet (needs pyarrow).")
    ] = None,
) -> None:
    """Compare what the cells of one or more runs produced, and what it cost."""
    from vcbench.report.compare import render

    paths = [find_run(run) for run in runs]
    render(paths, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, parquet=parquet, console=results())
