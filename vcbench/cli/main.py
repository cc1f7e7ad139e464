"""The `vcbench` command. Nothing here imports torch, numba or pandas before a command needs them."""

from __future__ import annotations

import errno
import sys
from typing import Annotated, Any

import typer

from vcbench import __version__
from vcbench.cli import calibrate, check, compare, demo, diff, doctor, init, ls, model, rm, run, runs, score, show
from vcbench.cli.output import notes
from vcbench.errors import UsageError, VcbenchError

INTERRUPTED = 130
CommandLineError: Any = typer.BadParameter.__mro__[1]
"""The usage error of the click that this typer carries."""
RESUMES = "the same command takes up where this one stopped"
DISK = {
    errno.ENOSPC: f"the disk is full: free some space; {RESUMES}",
    errno.EDQUOT: f"the disk quota is used up: free some space; {RESUMES}",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.EACCES: "permission denied: choose another place or change its permissions",
}

app = typer.Typer(
    name="vcbench",
    help="Decode with compressed KV caches, keep the output of the full one, and measure what it costs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: vcbench demo, which needs no model; then vcbench init",
)
app.command("demo")(demo.demo)
app.command("init")(init.init)
app.command("run")(run.run)
app.command("runs")(runs.runs)
app.command("compare")(compare.compare)
app.command("score")(score.score)
app.command("check")(check.check)
app.command("show")(show.show)
app.command("diff")(diff.diff)
app.command("rm")(rm.rm)
app.add_typer(model.app, name="model")
app.command("calibrate")(calibrate.calibrate)
app.command("ls")(ls.ls)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"vcbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def entry() -> None:
    """What the `vcbench` script calls: runs a command and exits with its code."""
    sys.exit(main())


def main() -> int:
    """Runs the command in `sys.argv`; an expected failure is one message on stderr and its exit code."""
    from vcbench.engine.environment import prepare
    from vcbench.records.printable import never_fail

    prepare()
    never_fail(sys.stdout)
    never_fail(sys.stderr)
    try:
        code = app(prog_name="vcbench", standalone_mode=False)
    except CommandLineError as error:
        error.show()
        return UsageError.exit_code
    except VcbenchError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:
        if error.errno not in DISK:
            raise
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{DISK[error.errno]}", VcbenchError.exit_code)
    if code == INTERRUPTED:
        return _fail(f"interrupted; {RESUMES}", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    from rich.text import Text

    from vcbench.records.printable import printable

    notes().print(Text.assemble(("error: ", "bold red"), printable(message, newlines=True)))
    return code
