"""`vcbench score`: every metric of a run, recomputed from its records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vcbench.cli.completion import complete_run, complete_task
from vcbench.cli.output import next_command, notes, results, write_json
from vcbench.cli.runs import find_run


class Harness(StrEnum):
    """Where swebench's harness may run tests."""

    DOCKER = "docker"
    MODAL = "modal"


def score(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run's directory, or its name under runs/.", autocompletion=complete_run),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(help="Of this task only; may be given again.", autocompletion=complete_task),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="KEY", help="Apart for each value of this key of the prompts' meta.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the answers in the benchmarks' own formats.")
    ] = None,
    harness: Annotated[
        Harness | None, typer.Option(help="Run the tests of SWE-bench patches in containers, for `resolved`.")
    ] = None,
    exec_logs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Grade SWE-bench test logs: DIR/MODEL/INSTANCE/test_output.txt.")
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Divergence by step: growth, distribution, how long outputs stay equal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, every value in it.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Every figure as a row of CSV on stdout.")] = False,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every figure as a row of Parquet (needs pyarrow).")
    ] = None,
) -> None:
    """Score a run from its records alone: no model is loaded. Exit code 1 where a metric failed on an answer."""
    from vcbench.errors import UsageError
    from vcbench.records.codec import plain
    from vcbench.records.reader import load_run
    from vcbench.report.curves import print_curves
    from vcbench.report.frame import csv_text, write_parquet
    from vcbench.report.score import flat_rows, print_scores
    from vcbench.scoring.document import as_dict, score_run, write_scores
    from vcbench.scoring.scores import Scores, check_key

    if as_json and as_csv:
        raise UsageError("choose one of --json and --csv")
    if harness is not None and exec_logs is not None:
        raise UsageError("choose one of --harness and --exec-logs")
    loaded = load_run(find_run(run))
    unknown = [name for name in task or () if name not in loaded.tasks]
    if unknown:
        raise UsageError(f"{loaded.path} has no task {unknown[0]!r}; it has {', '.join(loaded.tasks)}")
    if by is not None:
        check_key(loaded, by)
    if harness is not None or exec_logs is not None:
        from vcbench.scoring.resolved import grade_run

        for line in grade_run(loaded, backend=None if harness is None else harness.value, logs=exec_logs):
            notes().print(line, markup=False)
    scores = score_run(loaded)
    shown = Scores(
        run=scores.run,
        records_sha256=scores.records_sha256,
        code_sha256=scores.code_sha256,
        tasks=[each for each in scores.tasks if not task or each.task in task],
    )
    if parquet is not None:
        write_parquet(flat_rows(loaded, shown, by=by), parquet)
    if as_json:
        write_json(plain(as_dict(loaded, shown)))
    elif as_csv:
        print(csv_text(flat_rows(loaded, shown, by=by)), end="")
    else:
        console = results()
        print_scores(loaded, shown, console, by=by)
        for each in shown.tasks if curves else ():
            print_curves(loaded, each.task, console)
    if export is not None:
        from vcbench.scoring.export import export as export_answers

        for path in export_answers(loaded, export, [each.task for each in shown.tasks]):
            notes().print(f"written: {path}", markup=False)
    for line in loaded.dropped:
        notes().print(f"! {line}", markup=False)
    if not loaded.complete:
        notes().print("! the run is not complete: all figures are of what it has so far", markup=False)
    write_scores(loaded, scores)
    if failed := shown.errors():
        notes().print(f"FAILED: {failed} metrics of answers; their reasons are above and in scores.json", markup=False)
    next_command("vcbench", "compare", loaded.path)
    if failed:
        raise typer.Exit(1)
