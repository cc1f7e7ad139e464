"""`vcbench diff`: what differs between two runs, in words."""

from __future__ import annotations

from typing import Annotated

import typer

from vcbench.cli.completion import complete_run
from vcbench.cli.output import next_command, results, write_json
from vcbench.cli.runs import find_run
from vcbench.errors import UsageError


def diff(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="A run's directory, or its name under runs/.", autocompletion=complete_run),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=complete_run)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what differs between two runs: configuration, cells, prompts, answers, counts, provenance, hardware.

    The exit code is 0 whether they differ or not; --json says `same`. Whether outputs are equal is `check`'s to judge.
    """
    from rich.text import Text

    from vcbench.records.reader import load_run
    from vcbench.report.diff import difference

    runs = [load_run(find_run(text)) for text in (first, second)]
    if runs[0].path.resolve() == runs[1].path.resolve():
        raise UsageError(f"{first} and {second} are the same run; name two")
    sections = difference(*runs)
    same = not any(sections.values())
    if as_json:
        write_json({"a": str(runs[0].path), "b": str(runs[1].path), "same": same, "differences": sections})
        return
    console = results()
    for name, lines in sections.items():
        console.print(Text(f"{name}: {'the same' if not lines else ''}".rstrip(), style="bold" if lines else ""))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)
    next_command("vcbench", "compare", *(run.path for run in runs))
