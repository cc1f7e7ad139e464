"""What ends a command before its time: one line for a reader, and an exit code that is never taken for a verdict.

0 to 3 are the gate's, 64 is what was asked for and cannot be done, 70 a failure that nobody asked for.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import traceback
from dataclasses import dataclass

from vcbench.errors import VcbenchError

INTERNAL = 70
INTERRUPTED = 130
RESUMES = "the same command takes up where this one stopped"
DISK = {
    errno.ENOSPC: f"the disk is full: free some space; {RESUMES}",
    errno.EDQUOT: f"the disk quota is used up: free some space; {RESUMES}",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.EACCES: "permission denied: choose another place or change its permissions",
}
TRACEBACK = "VCBENCH_TRACEBACK"
"""The variable that asks for the traceback of an internal error."""
REPORT = (
    f"This is a fault of vcbench: please report it in the project's issue tracker, with the command, what `vcbench "
    f"doctor` says, and the traceback that {TRACEBACK}=1 shows"
)
LEAST_ADDRESSES = 512 * 2**20
MEMORY = f"give it more memory, or less to do: a smaller engine.batch_size, a lower limit, shorter prompts; {RESUMES}"
NO_MEMORY = (
    "failed to map segment",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What to say, and the exit code."""

    message: str
    exit_code: int


def explain(error: BaseException) -> Failure:
    """The one line and the exit code of whatever ended a command."""
    match error:
        case VcbenchError():
            return Failure(str(error), error.exit_code)
        case KeyboardInterrupt():
            return Failure(f"interrupted; {RESUMES}", INTERRUPTED)
        case BrokenPipeError():
            return Failure("stdout was closed before everything was written", INTERNAL)
        case _ if type(error).__name__ == "Abort":
            return Failure(f"interrupted; {RESUMES}", INTERRUPTED)
        case _ if _is_memory(error):
            return Failure(f"out of memory ({_line(error)}): {MEMORY}", INTERNAL)
        case OSError() if error.errno in DISK:
            place = f"{error.filename}: " if error.filename else ""
            return Failure(f"{place}{DISK[error.errno]}", VcbenchError.exit_code)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    return Failure(f"internal error: {type(error).__name__}: {_line(error)}{_where(error)}. {REPORT}", INTERNAL)


def refuse_too_little_memory() -> None:
    """Raises MemoryError where so little can be mapped that a library would end the process by itself, with code 1."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        allowed, needed = limit // 2**20, LEAST_ADDRESSES // 2**20
        raise MemoryError(f"this process may map {allowed} MiB (ulimit -v), the libraries alone take {needed}")


def keep_standard_streams() -> None:
    """Opens what the caller closed (`>&-`): else the next file that is opened takes the descriptor's number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- open to the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- open to the end


def let_go_of_stdout() -> None:
    """Whatever stdout still holds is written now or dropped, so that the interpreter's own end cannot fail on it."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- open to the end


def _is_memory(error: BaseException) -> bool:
    said = str(error).lower()
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return full or isinstance(error, MemoryError) or any(words in said for words in NO_MEMORY)


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if f"{os.sep}vcbench{os.sep}" in frame.filename] or frames
    return f" (in {os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""  # noqa: PTH119
