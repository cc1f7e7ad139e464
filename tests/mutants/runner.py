"""Runs mutations one at a time on a copy of the tree and says which of them no test saw."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutants.mutation import Mutation, applied

Outcome = Literal["caught", "SURVIVED", "timed out", "ERROR"]
LEFT_BEHIND = shutil.ignore_patterns(
    ".git", ".venv*", "runs", "__pycache__", ".*_cache", ".hypothesis", "build", "dist"
)
PASSED, FAILED = 0, 1
"""pytest's exit codes; any other one means that the tests did not run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutation. A time-out counts as caught: the suite would not have passed."""

    mutation: str
    outcome: Outcome
    seconds: float
    output: str = ""

    @property
    def good(self) -> bool:
        """Whether a test saw it."""
        return self.outcome in ("caught", "timed out")


def copy_of(root: Path, into: Path) -> Path:
    """The tree without history, environments, runs and caches."""
    return Path(shutil.copytree(root, into / "tree", ignore=LEFT_BEHIND, symlinks=True))


def sound(tree: Path, mutations: Iterable[Mutation], *, timeout_s: float) -> list[str]:
    """The named tests that do not pass without a mutation; such a test proves nothing."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    code, output = _pytest(tree, tests, _environment(tree, fresh=None), timeout_s)
    return [] if code == PASSED else [output]


def verdicts(tree: Path, mutations: Iterable[Mutation], *, timeout_s: float) -> Iterator[Verdict]:
    """Applies each mutation, runs its tests, takes it back."""
    for number, mutation in enumerate(mutations):
        started = time.perf_counter()
        fresh = tree.parent / f"kernels-{number}" if mutation.recompiles else None
        with applied(mutation, tree):
            code, output = _pytest(tree, mutation.tests, _environment(tree, fresh), timeout_s)
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
        yield Verdict(mutation.name, _outcome(code), time.perf_counter() - started, output)


def _outcome(code: int | None) -> Outcome:
    if code is None:
        return "timed out"
    if code == PASSED:
        return "SURVIVED"
    return "caught" if code == FAILED else "ERROR"


def _environment(tree: Path, fresh: Path | None) -> Mapping[str, str]:
    """Imports come from the copy; a mutated kernel is compiled apart, for its callers hold it inlined."""
    kernels = fresh or tree.parent / "kernels"
    return {**os.environ, "PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(kernels), "PYTHONDONTWRITEBYTECODE": "1"}


def _pytest(tree: Path, tests: Iterable[str], env: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr)[-4000:]
