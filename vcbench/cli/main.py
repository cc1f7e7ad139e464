"""The `vcbench` command. Nothing here imports torch, numba or pandas before a command needs them."""

from __future__ import annotations

import contextlib
import errno
import sys
from typing import Annotated, Any

import typer

from vcbench import __version__
from vcbench.cli import calibrate, check, compare, demo, diff, doctor, init, ls, model, rm, run, runs, score, show
from vcbench.cli.failures import INTERRUPTED
from vcbench.cli.output import notes
from vcbench.errors import UsageError

CommandLineError: Any = typer.BadParameter.__mro__[1]
"""The usage error of the click that this typer carries."""
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
    """Runs the command in `sys.argv`; a failure is one message on stderr and an exit code that `docs/ci.md` lists."""
    from vcbench.cli.failures import explain, keep_standard_streams, let_go_of_stdout, refuse_too_little_memory
    from vcbench.engine.environment import prepare
    from vcbench.records.printable import never_fail

    keep_standard_streams()
    prepare()
    never_fail(sys.stdout)
    never_fail(sys.stderr)
    try:
        refuse_too_little_memory()
        code = _command()
        sys.stdout.flush()
    except CommandLineError as error:
        error.show()
        return UsageError.exit_code
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is said in one line and never taken for a verdict
        failure = explain(error)
        let_go_of_stdout()
        return _fail(failure.message, failure.exit_code)
    return code


def _command() -> int:
    """Runs the command and returns its exit code. Raises what it raises."""
    try:
        code = app(prog_name="vcbench", standalone_mode=False)
    except SystemExit as error:
        if error.code in (None, 0):
            return 0
        # Typer ends the process so where stdout has been closed.
        raise BrokenPipeError(errno.EPIPE, "closed") from error
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    from vcbench.records.printable import printable

    shown = printable(message, newlines=True)
    try:
        from rich.text import Text

        notes().print(Text.assemble(("error: ", "bold red"), shown))
    except (ImportError, MemoryError, OSError):
        # Too little memory for colours, or nobody left to read.
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: {shown}\n")
    return code
