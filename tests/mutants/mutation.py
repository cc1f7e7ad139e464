"""What a mutation is, and how one is applied to a tree and taken back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KERNELS = "vcbench/engine/kernels/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One fault: in `file`, the text `before`, which occurs there once, becomes `after`.

    name: short, in words of its own. tests: pytest node ids; at least one of them must fail under the fault.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def recompiles(self) -> bool:
        """Whether compiled kernels of the sound tree may hold what this mutation changes."""
        return self.file.startswith(KERNELS)

    def problem(self, root: Path) -> str | None:
        """Why it cannot be applied to a tree, or None."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text("utf-8").count(self.before)
        if count != 1:
            return f"{self.file} holds the text {count} times, not once: {self.before!r}"
        if self.before == self.after:
            return "it changes nothing"
        return next((f"{test.split('::')[0]} does not exist" for test in self.tests if not _exists(root, test)), None)


def _exists(root: Path, test: str) -> bool:
    """Whether a node id's file is there and defines the id's function or class, if it names one."""
    file, _, rest = test.partition("::")
    path = root / file
    if not path.is_file():
        return False
    text = path.read_text("utf-8")
    return all(
        f"def {name}(" in text or f"class {name}" in text
        for name in (part.split("[")[0] for part in rest.split("::") if part)
    )


@contextmanager
def applied(mutation: Mutation, root: Path) -> Iterator[None]:
    """The tree with the fault in it; afterwards the file is as it was, times included.

    Raises:
        ValueError: when it does not apply.
    """
    if problem := mutation.problem(root):
        raise ValueError(f"{mutation.name}: {problem}")
    path = root / mutation.file
    sound, stat = path.read_bytes(), path.stat()
    path.write_text(sound.decode("utf-8").replace(mutation.before, mutation.after), "utf-8")
    try:
        yield
    finally:
        path.write_bytes(sound)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # numba takes a source's time of change for its version
