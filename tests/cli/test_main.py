"""The command line as a user meets it: quick to start, one message per failure, an exit code for each kind."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vcbench import __version__
from vcbench.cli import main as cli
from vcbench.errors import InexactError, VcbenchError

HEAVY = ("torch", "numba", "pandas", "transformers", "tokenizers", "huggingface_hub", "numpy", "safetensors")
PROBE = f"""
import sys
from vcbench.cli import main
sys.argv = ["vcbench", *sys.argv[1:]]
try:
    code = main.main()
finally:
    print("LOADED", *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def _vcbench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )


def _main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["vcbench", *words])
    return cli.main()


def _raise(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("vcbench.config.load.load_config", load)


def test_importing_the_command_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import vcbench.cli.main, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["run", "--help"], ["compare", "--help"], ["model", "--help"], ["ls", "runs"]]
)
def test_help_and_lists_load_nothing_heavy(words: list[str]) -> None:
    done = _vcbench(*words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "LOADED"


def test_help_names_every_command() -> None:
    shown = _vcbench("--help").stdout
    for command in ("run", "compare", "check", "show", "model", "ls", "doctor"):
        assert f"│ {command} " in shown


def test_version() -> None:
    assert _vcbench("--version").stdout == f"vcbench {__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rum"], "No such command 'rum'"),
        (["run"], "Missing argument 'CONFIG'"),
        (["run", "--sat", "a=1", "x.yaml"], "No such option: --sat"),
        (["ls", "things"], "'things' is not one of"),
        (["model", "fetsh"], "No such command 'fetsh'"),
        (["compare", "nope"], "no run 'nope'"),
        (["check", "nope"], "no run 'nope'"),
        (["show", "nope", "--request", "x"], "no run 'nope'"),
    ],
)
def test_mistyped_commands_end_with_64(words: list[str], expected: str) -> None:
    done = _vcbench(*words)
    assert done.returncode == 64
    assert expected in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_bad_configuration_is_one_message_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: a\nmodl: {id: x}\ncells: []\n")
    done = _vcbench("run", str(path), "--set", "seed=x", "--name", "no/slash")
    assert done.returncode == 64
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "error: 6 problems in the configuration:"
    assert f"  {path}:2: unknown key `modl` in the configuration (did you mean 'model'?)" in lines
    assert f"  {path}:3: `cells` is empty (list at least one)" in lines
    assert any(line.startswith("  --set seed=x: `seed` must be a whole number") for line in lines)
    assert any("'no/slash' is no name for a run" in line for line in lines)


def test_colour_is_off_where_asked(tmp_path: Path) -> None:
    coloured = _vcbench("run", str(tmp_path), FORCE_COLOR="1").stderr
    plain = _vcbench("run", str(tmp_path), FORCE_COLOR="1", NO_COLOR="1").stderr
    assert "31m" in coloured
    assert "31m" not in plain
    assert "error:" in plain


def test_waiting_threads_sleep_before_torch_is_loaded() -> None:
    done = _vcbench("doctor", OMP_WAIT_POLICY="")
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    code = "import os, sys; sys.argv = ['vcbench', '--version']; from vcbench.cli.main import main; main()"
    code += "; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert shown.stdout.splitlines()[-1] == "passive False"
    assert "OMP_WAIT_POLICY" in done.stdout


def test_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _raise(monkeypatch, KeyboardInterrupt())
    assert _main(monkeypatch, "run", "x.yaml") == 130
    assert "interrupted; the same command takes up where this one stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "the file system is read-only"),
    ],
)
def test_disks_that_refuse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, expected: str
) -> None:
    _raise(monkeypatch, OSError(number, "no", "runs/a/requests.jsonl"))
    assert _main(monkeypatch, "run", "x.yaml") == 64
    assert capsys.readouterr().err.startswith(f"error: runs/a/requests.jsonl: {expected}")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EIO, "input/output error"), "internal error: OSError"),
        (TypeError("odd\x1b[2J\nvalue"), r"internal error: TypeError: odd\x1b[2J value"),
        (KeyError("x"), "internal error: KeyError"),
        (RecursionError("deep"), "internal error: RecursionError"),
        (AssertionError(), "internal error: AssertionError"),
        (MemoryError(), "out of memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
            "out of memory",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "stdout was closed"),
        (SystemExit(1), "stdout was closed"),
    ],
)
def test_what_nobody_asked_for_is_70_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, says: str
) -> None:
    _raise(monkeypatch, error)
    assert _main(monkeypatch, "run", "x.yaml") == 70
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert says in err
    assert err.count("\n") == 1
    assert ("issue tracker" in err) == ("internal" in err)


def test_no_expected_failure_is_taken_for_a_violation() -> None:
    waiting, seen = [VcbenchError], set[type]()
    while waiting:
        kind = waiting.pop()
        seen.add(kind)
        waiting += kind.__subclasses__()
    assert {kind.exit_code for kind in seen} == {64, 3}


def _shell(words: str) -> subprocess.CompletedProcess[str]:
    code = "from vcbench.cli.main import entry; entry()"
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} {words}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("ls tasks >&-", 0),
        ("ls tasks 2>&-", 0),
        ("ls tasks >&- 2>&- <&-", 0),
        ("ls tasks --json >/dev/full", 64),
        ("ls tasks > >(exec true; sleep 0)", None),
    ],
)
def test_streams_that_are_closed_or_full(words: str, code: int | None) -> None:
    done = _shell(words)
    assert "Traceback" not in done.stderr
    assert done.returncode == code if code is not None else done.returncode in (0, 70)


@pytest.mark.parametrize("kib", [100_000, 130_000, 160_000, 300_000])
def test_too_little_memory_is_70_in_one_line(kib: int) -> None:
    code = "from vcbench.cli.main import entry; entry()"
    command = f"ulimit -v {kib}; exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} check tiny"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.startswith("error: out of memory (this process may map")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_70() -> None:
    read, write = os.pipe()
    os.close(read)
    code = "from vcbench.cli.main import entry; entry()"
    done = subprocess.run(
        [sys.executable, "-c", code, "ls", "tasks"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert done.returncode == 70
    assert "stdout was closed before everything was written" in done.stderr
    assert "Traceback" not in done.stderr


def test_expected_failures_keep_their_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raise(monkeypatch, InexactError("rows [of] \ud83d differ"))
    assert _main(monkeypatch, "run", "x.yaml") == InexactError.exit_code
    assert capsys.readouterr().err == "error: rows [of] \\ud83d differ\n"
