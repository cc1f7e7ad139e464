"""Files from a clone at a commit that is not the one checked out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tasks.swebench.patches import FILES, NEW_FILE, PATCH
from vcbench.errors import TaskError
from vcbench.tasks.rows import Row
from vcbench.tasks.swebench.checkout import find_clone, oracle_files


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory of one clone, whose file has changed since the commit; the commit."""
    directory = tmp_path_factory.mktemp("checkouts")
    clone = directory / "owner__project"
    (clone / "pkg").mkdir(parents=True)
    git(clone, "init", "-q")
    (clone / "pkg" / "a.py").write_text(FILES["pkg/a.py"])
    (clone / "pkg" / "latin.py").write_bytes(b"# \xe9\n")
    (clone / "README.md").write_text("# A project\n")
    (clone / "READ[M]E.txt").write_text("a glob to git, unless it is told otherwise")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "base")
    commit = git(clone, "rev-parse", "HEAD")
    (clone / "pkg" / "a.py").write_text("changed since\n")
    git(clone, "commit", "-qam", "later")
    return directory, commit


def row(commit: str, patch: str = PATCH + NEW_FILE, repo: str = "owner/project") -> Row:
    return Row("rows.jsonl, line 1", 1, b"", {"repo": repo, "base_commit": commit, "patch": patch})


def test_files_at_the_commit(checkouts: tuple[Path, str]) -> None:
    directory, commit = checkouts
    files = oracle_files(row(commit), directory)
    assert files == {"README.md": "# A project\n", **FILES}
    assert next(iter(files)) == "README.md"
    assert (directory / "owner__project" / "pkg" / "a.py").read_text() == "changed since\n", "nothing is checked out"


def test_a_readme_that_the_patch_changes_comes_once(checkouts: tuple[Path, str]) -> None:
    directory, commit = checkouts
    patch = "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-# A project\n+# The project\n"
    assert list(oracle_files(row(commit, patch), directory)) == ["README.md"]


def test_names_of_clones(tmp_path: Path) -> None:
    for name in ("owner__project", "owner/project", "project", "project.git"):
        directory = tmp_path / name.replace("/", "-") / "all"
        (directory / name).mkdir(parents=True)
        assert find_clone(row("x"), directory) == directory / name


def test_what_is_missing(checkouts: tuple[Path, str], tmp_path: Path) -> None:
    directory, commit = checkouts
    with pytest.raises(TaskError, match=r"line 1: no clone of a/b in .*; run: git clone https://github.com/a/b .*a__b"):
        oracle_files(row(commit, repo="a/b"), directory)
    with pytest.raises(
        TaskError, match=r"line 1: .*owner__project does not have 111111111111 .*; run: git -C .* fetch"
    ):
        oracle_files(row("1" * 40), directory)
    with pytest.raises(TaskError, match="field `patch` is not a patch: it names no file"):
        oracle_files(row(commit, "prose"), directory)
    (tmp_path / "project").mkdir()
    with pytest.raises(TaskError, match=r"does not have .*not a git repository"):
        oracle_files(row(commit), tmp_path)
    latin = "--- a/pkg/latin.py\n+++ b/pkg/latin.py\n@@ -1 +1 @@\n-# e\n+# f\n"
    with pytest.raises(TaskError, match=r"pkg/latin.py at .* is not UTF-8"):
        oracle_files(row(commit, latin), directory)
