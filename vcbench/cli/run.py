"""`vcbench run`: carries out a configuration, or shows what that would take."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcbench.cli.output import next_command, notes, write_json

if TYPE_CHECKING:
    from vcbench.models.architecture import Architecture


def run(
    config: Annotated[Path, typer.Argument(help="A YAML file; see docs/config.md.", metavar="CONFIG")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Change one key; list items by index (cells.1.draft_length=8)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, with estimates, and stop.")] = False,
    name: Annotated[str | None, typer.Option(help="Another name for the run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Run a configuration. The same command resumes a run that was stopped.

    The exit code is 1 where a request or a metric of an answer failed; all else is recorded and stays valid.
    """
    from vcbench.config.load import load_config

    changes = [*(overrides or ()), *([f"name={json.dumps(name)}"] if name is not None else ())]
    loaded = load_config(config, changes, architecture_of=architecture_of)
    if dry_run:
        from vcbench.cli.dry_run import show_plan

        show_plan(loaded, as_json=as_json)
        next_command(shlex.join(["vcbench", "run", str(config), *(f"--set={change}" for change in changes)]))
        return
    from vcbench.records.reader import load_run
    from vcbench.runners.run import execute
    from vcbench.scoring.document import score_and_write

    path = execute(loaded, console=notes())
    run = load_run(path)
    failed = score_and_write(run).errors()
    unanswered = sum(line.error is not None for line in run.requests.values())
    if as_json:
        write_json({"name": loaded.name, "path": str(path), "request_errors": unanswered, "metric_errors": failed})
    else:
        print(path)
    if failed:
        notes().print(f"FAILED: {failed} metrics of answers; vcbench score {path} says why", markup=False)
    if failed or unanswered:
        raise typer.Exit(1)
    next_command(f"vcbench compare {path}")


def architecture_of(model_id: str) -> Architecture | None:
    """The model's shape as far as it is known before the model is looked for: by name, or from a local directory."""
    from vcbench.errors import ModelError
    from vcbench.models.catalog import known_architecture
    from vcbench.models.files import read_json
    from vcbench.models.hf_config import parse_architecture

    config = Path(model_id).expanduser() / "config.json"
    if not config.is_file():
        return known_architecture(model_id)
    try:
        return parse_architecture(read_json(config))
    except ModelError:
        return None
