"""`vcbench run`: carries out a configuration, or shows what that would take."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcbench.cli.completion import complete_config, complete_gpu, complete_setting
from vcbench.cli.output import next_command, notes, write_json
from vcbench.config.paths import user_path

if TYPE_CHECKING:
    from vcbench.models.architecture import Architecture


def run(
    config: Annotated[
        Path,
        typer.Argument(help="A YAML file; see docs/config.md.", metavar="CONFIG", autocompletion=complete_config),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A.B=C",
            help="Change one key; list items by index (cells.1.draft_length=8).",
            autocompletion=complete_setting,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, with estimates, and stop.")] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --dry-run: times on this GPU, which need not be here (H100, H200, A100, ...).",
            autocompletion=complete_gpu,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Another name for the run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Run a configuration. The same command resumes a run that was stopped.

    With --set and without --name, another run of that name stays as it is, and this one is put beside it.

    The exit code is 1 where a request or a metric of an answer failed; all else is recorded and stays valid.
    """
    from vcbench.config.load import load_config
    from vcbench.config.overrides import name_beside
    from vcbench.errors import UsageError

    changes = [*(overrides or ()), *([f"name={json.dumps(name)}"] if name is not None else ())]
    loaded = load_config(config, changes, architecture_of=architecture_of)
    if dry_run:
        from vcbench.cli.dry_run import show_plan

        command = shlex.join(["vcbench", "run", str(config), *(f"--set={change}" for change in changes)])
        show_plan(loaded, gpu=gpu, as_json=as_json, command=command)
        return
    if gpu is not None:
        raise UsageError("--gpu is for --dry-run; a run uses the GPU that is here")
    from vcbench.records.reader import load_run
    from vcbench.runners.run import execute
    from vcbench.scoring.document import score_and_write

    path = execute(loaded, console=notes(), beside=name_beside(loaded.name, changes))
    run = load_run(path)
    failed = score_and_write(run).errors()
    unanswered = sum(line.error is not None for line in run.requests.values())
    if as_json:
        write_json({"name": path.name, "path": str(path), "request_errors": unanswered, "metric_errors": failed})
    else:
        print(path)
    if failed:
        why = shlex.join(["vcbench", "score", str(path)])
        notes().print(f"FAILED: {failed} metrics of answers; {why} says why", markup=False)
    if failed or unanswered:
        raise typer.Exit(1)
    next_command("vcbench", "compare", path)


def architecture_of(model_id: str) -> Architecture | None:
    """The model's shape as far as it is known before the model is looked for: by name, or from a local directory."""
    from vcbench.errors import ModelError
    from vcbench.models.catalog import known_architecture
    from vcbench.models.files import read_json
    from vcbench.models.hf_config import parse_architecture

    config = user_path(model_id) / "config.json"
    if not config.is_file():
        return known_architecture(model_id)
    try:
        return parse_architecture(read_json(config))
    except ModelError:
        return None
