"""`vcbench rm`: removes runs; all that are named or none."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from vcbench.cli.completion import complete_run
from vcbench.cli.output import next_command, notes
from vcbench.cli.runs import RUNS, names_of_runs
from vcbench.errors import UsageError


def rm(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Names of runs, or their paths.", autocompletion=complete_run),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    directory: Annotated[Path, typer.Option("--dir", help="Where runs lie; nothing outside it is removed.")] = RUNS,
) -> None:
    """Remove runs with everything in their directories, after asking.

    Refused, and then nothing at all is removed: what is no run, what lies outside the directory of runs, a link, and a
    run that another process is writing.
    """
    from vcbench.records.files import explained, take_lock

    paths = list(dict.fromkeys(_run_below(directory, text) for text in targets))
    with ExitStack() as stack:
        for path in paths:
            with explained(path, "remove", elsewhere="change its permissions first"):
                stack.callback(os.close, take_lock(path))
        for path in paths:
            notes().print(_described(path), markup=False, highlight=False)
        if not yes:
            _ask(len(paths))
        for path in paths:
            _remove(path)
            print(path)
    next_command("vcbench", "runs", *(() if directory == RUNS else ("--dir", directory)))


def _run_below(directory: Path, text: str) -> Path:
    """The run that is meant. Raises UsageError unless it is a directory of its own, right below `directory`."""
    from vcbench.records.files import CONFIG, PROVENANCE
    from vcbench.records.printable import printable
    from vcbench.registry import suggest

    plain = Path(text).name == text and text not in ("", ".", "..")
    named = directory / text if plain else Path(text)
    shown = printable(text)
    if named.is_symlink():
        raise UsageError(f"{shown} is a link; remove the link itself, or name the run that it leads to")
    if not text or not named.is_dir():
        known = names_of_runs(directory)
        raise UsageError(f"no run {shown!r} under {directory}/; {suggest(text, known) if known else 'there are none'}")
    if named.resolve().parent != directory.resolve():
        hint = f"--dir {named.parent} says that runs lie there"
        raise UsageError(f"{shown} does not lie right below {directory}/, and nothing else is removed; {hint}")
    if not (named / PROVENANCE).is_file() and not (named / CONFIG).is_file():
        raise UsageError(f"{shown} is no run: it has neither {PROVENANCE} nor {CONFIG}; remove it by other means")
    return directory / named.resolve().name


def _described(path: Path) -> str:
    """A run in one line: what would be lost."""
    files = [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    size = sum(file.stat().st_size for file in files)
    return f"{path}: {len(files)} files, {size / 2**20:.1f} MiB, {_state(path)}"


def _state(path: Path) -> str:
    from vcbench.errors import RecordError
    from vcbench.records.reader import load_run

    try:
        run = load_run(path, all_prompts=True)
    except RecordError:
        return "damaged or never begun"
    return f"{len(run.requests)} answers, {'complete' if run.complete else 'unfinished'}"


def _ask(count: int) -> None:
    """Raises UsageError where nobody can be asked, and Exit where the answer is no."""
    if not _asked_by_a_person():
        raise UsageError("nobody is here to be asked (stdin is no terminal); give --yes to remove without asking")
    what = "this run" if count == 1 else f"these {count} runs"
    if not typer.confirm(f"Remove {what}?", err=True):
        notes().print("nothing is removed")
        raise typer.Exit


def _asked_by_a_person() -> bool:
    return sys.stdin.isatty()


def _remove(path: Path) -> None:
    """The directory gone from its place at once, then its files; a second call finishes what was interrupted."""
    from vcbench.records.files import explained

    doomed = path.with_name(f".{path.name}.removed")
    with explained(path, "remove", elsewhere="change its permissions first"):
        if doomed.exists():
            shutil.rmtree(doomed)
        path.rename(doomed)
        shutil.rmtree(doomed)
