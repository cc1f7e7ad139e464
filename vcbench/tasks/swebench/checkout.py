"""The files of a prompt from a local git clone, as they were at an instance's base commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from vcbench.errors import TaskError
from vcbench.tasks.rows import Row
from vcbench.tasks.swebench.patch import parse_patch


def oracle_files(row: Row, checkouts: Path) -> dict[str, str]:
    """The README files of the project, then those that the gold patch changes: path to content.

    Nothing is checked out: files are read from the clone's objects. Raises TaskError where the clone, the commit or a
    file is missing.
    """
    clone, commit = find_clone(row, checkouts), row.text("base_commit")
    parsed = parse_patch(row.text("patch"))
    if not parsed.valid:
        row.refuse(f"field `patch` is not a patch: it {parsed.fault}")
    top = _git(row, clone, "ls-tree", "--name-only", "-z", f"{commit}^{{commit}}").decode().split("\0")
    readmes = sorted(name for name in top if name.startswith("README"))
    present = _present(row, clone, commit, sorted(parsed.paths))
    return {path: _content(row, clone, commit, path) for path in (*readmes, *(p for p in present if p not in readmes))}


def find_clone(row: Row, checkouts: Path) -> Path:
    """The clone of the row's project: `owner__name`, `owner/name` or `name` in the directory, bare or not."""
    repo = row.text("repo")
    names = (repo.replace("/", "__"), repo, repo.rpartition("/")[2])
    for name in (*names, *(f"{name}.git" for name in names)):
        if (checkouts / name).is_dir():
            return checkouts / name
    raise TaskError(
        f"{row.where}: no clone of {repo} in {checkouts}; run: git clone https://github.com/{repo} "
        f"{checkouts / names[0]}"
    )


def _present(row: Row, clone: Path, commit: str, paths: list[str]) -> list[str]:
    """Those of the paths that the commit has; a patch may create others."""
    listed = _git(row, clone, "ls-tree", "-r", "--name-only", "-z", commit, "--", *paths).decode().split("\0")
    return [path for path in paths if path in listed]


def _content(row: Row, clone: Path, commit: str, path: str) -> str:
    data = _git(row, clone, "cat-file", "blob", f"{commit}:{path}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        row.refuse(f"{path} at {commit[:12]} is not UTF-8; leave this instance out")


def _git(row: Row, clone: Path, *arguments: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {"LC_ALL": "C"}
    environment["GIT_CEILING_DIRECTORIES"] = str(clone.resolve().parent)
    command = ["git", "--literal-pathspecs", "-C", str(clone), *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise TaskError("git is needed to read checkouts; install it") from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        row.refuse(
            f"{clone} does not have {row.text('base_commit')[:12]} ({''.join(reason)}); "
            f"run: git -C {clone} fetch origin, or clone the project anew"
        )
    return done.stdout
