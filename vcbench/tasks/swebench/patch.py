"""Patches in answers: found, parsed, and tried on the files that the prompt showed.

SWE-bench's own extraction falls back to the whole answer, so an answer in prose "has a patch" there. Here an answer
has one only if a diff's headers are in it, and a patch is valid only if it parses to files with hunks.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vcbench.errors import TaskError

_TAGS = ("patch", "diff")
_DIFF_FENCE = re.compile(r"```(?:diff|patch)[ \t]*\n(.*?)```", re.DOTALL)
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_HEADERS = re.compile(r"^(?:diff --git \S|--- \S.*\n\+\+\+ \S|@@ -\d)", re.MULTILINE)
_END_OF_TEXT = "</s>"
_GIT_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a diff says: the paths it changes and its number of hunks; `fault` if it is not a valid one."""

    paths: frozenset[str] = frozenset()
    hunks: int = 0
    fault: str | None = None

    @property
    def valid(self) -> bool:
        """Whether it parses and changes something."""
        return self.fault is None


def extract_patch(text: str) -> str | None:
    """The answer's patch, ending in a newline; None where the answer has no diff.

    Looks in a `<patch>` or `<diff>` tag, then in a fence marked `diff` or `patch`, then in any other, then in the
    whole answer up to `</s>`, as SWE-bench does. An unclosed tag or fence counts as the whole answer.
    """
    if (tagged := _tagged(text)) is not None:
        return _diff(tagged)
    for pattern in (_DIFF_FENCE, _FENCE):
        if match := pattern.search(text):
            return _diff(match[1])
    return _diff(text.split(_END_OF_TEXT)[0])


def parse_patch(patch: str) -> Parsed:
    """What the diff changes. Garbage, to the parser a diff of no files, is a fault as a truncated one is."""
    import unidiff

    try:
        files = unidiff.PatchSet(patch)
    except (unidiff.UnidiffParseError, ValueError) as error:
        return Parsed(fault=f"does not parse: {error}")
    hunks = sum(map(len, files))
    if not hunks:
        return Parsed(fault="has no hunks" if files else "names no file")
    return Parsed(frozenset(file.path for file in files), hunks)


def applies(patch: str, files: Mapping[str, str]) -> bool:
    """Whether `git apply` would take the patch on these files alone. Nothing is changed.

    `files`: path to content. Git finds hunks whose line numbers are wrong by their context, as the benchmark's own
    harness does. Raises TaskError where git is missing.
    """
    with tempfile.TemporaryDirectory(prefix="vcbench-apply-") as directory:
        for path, content in files.items():
            _write(Path(directory), path, content)
        try:
            done = subprocess.run(
                ["git", "-c", "core.autocrlf=false", "apply", "--check", "-"],
                input=patch.encode("utf-8", "surrogatepass"),
                cwd=directory,
                env=_environment(directory),
                capture_output=True,
                timeout=_GIT_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as error:
            raise TaskError("git is needed to try patches; install it, then run `vcbench score` again") from error
    return done.returncode == 0


def file_f1(predicted: frozenset[str], gold: frozenset[str]) -> float:
    """F1 of the two sets of paths, 2|P and G| / (|P| + |G|); 1 for two empty ones."""
    total = len(predicted) + len(gold)
    return 2 * len(predicted & gold) / total if total else 1.0


def _tagged(text: str) -> str | None:
    """What the first closed tag holds. Takes linear time on the endless openings of an answer that loops."""
    found: dict[int, str] = {}
    for tag in _TAGS:
        start = text.find(f"<{tag}>")
        end = text.find(f"</{tag}>", start)
        if 0 <= start < end:
            found[start] = text[start + len(tag) + 2 : end]
    return found[min(found)] if found else None


def _diff(text: str) -> str | None:
    """The text as a diff, if there are headers of one in it."""
    if not _HEADERS.search(text):
        return None
    text = text.lstrip("\n")
    return text if text.endswith("\n") else f"{text}\n"


def _write(directory: Path, path: str, content: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise TaskError(f"the prompt's file {path!r} is outside its repository")
    target = directory.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode("utf-8", "surrogatepass"))


def _environment(directory: str) -> dict[str, str]:
    """The process's environment less what would make git see a repository, or its owner's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ceiling = str(Path(directory).resolve().parent)
    return kept | {
        "GIT_CEILING_DIRECTORIES": ceiling,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
    }
