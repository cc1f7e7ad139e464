"""Patches in answers: found, parsed, and tried on the files that the prompt showed.

SWE-bench's own extraction takes the first fence and falls back to the whole answer, so an answer in prose "has a patch"
there, and a diff behind another fence is lost. Here an answer has one if a diff's headers are in it, wherever, and a
patch is valid only if it parses to files with hunks. `swebench_patch` is what SWE-bench's own makes of an answer.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vcbench.errors import TaskError
from vcbench.tasks.swebench.diffs import joined

_TAGS = ("patch", "diff")
_OPENING_TAG = re.compile(r"<([\w-]+)>")
_OPENING_FENCE = re.compile(r"```(\w+)?\n")
_CRLF_HEADER = re.compile(r"^[ \t]*(?:\+\+\+ |@@ -\d).*\r$", re.MULTILINE)
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

    It is what the first closed `<patch>` or `<diff>` tag holds, if there is a diff in it, else the diffs of the whole
    answer, whatever fences and prose stand around or between them; see `diffs.joined`. Line ends of an answer that has
    CRLF in a diff's headers become LF.
    """
    text = re.sub(rf"{_END_OF_TEXT}\s*\Z", "", text)
    if _CRLF_HEADER.search(text):
        text = text.replace("\r\n", "\n")
    if (tagged := _tagged(text)) is not None and (patch := joined(tagged, fenced=True)) is not None:
        return patch
    return joined(text)


def swebench_patch(text: str) -> str:
    """What SWE-bench's own `extract_diff` makes of an answer, its rule restated; the whole answer if it finds nothing.

    The first tag or fence named `diff` or `patch`, tags before fences, else the first of any name. Cost: linear, where
    the original is quadratic in tags that do not end.
    """
    blocks = [*_tag_blocks(text), *_fence_blocks(text)]
    named = [content for name, content in blocks if name in _TAGS]
    return (named or [content for _, content in blocks] or [text.split(_END_OF_TEXT)[0]])[0]


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
    """What the first closed tag holds; one that ends at a line's beginning, for a diff's own lines never begin so.

    Takes linear time on the endless openings of an answer that loops.
    """
    found: dict[int, str] = {}
    for tag in _TAGS:
        start = text.find(f"<{tag}>")
        end = text.find(f"\n</{tag}>", start)
        end = end + 1 if end >= 0 else text.find(f"</{tag}>", start)
        if 0 <= start < end:
            found[start] = text[start + len(tag) + 2 : end]
    return found[min(found)] if found else None


def _tag_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Name and content of each closed tag, outermost only."""
    at, unended = 0, set[str]()
    while (opening := _OPENING_TAG.search(text, at)) is not None:
        at, name = opening.end(), opening[1]
        end = -1 if name in unended else text.find(f"</{name}>", at)
        if end < 0:
            unended.add(name)
            # Only `<` may begin the next one.
            at = opening.start() + 1
            continue
        yield name, text[at:end]
        at = end + len(name) + 3


def _fence_blocks(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while (opening := _OPENING_FENCE.search(text, at)) is not None:
        end = text.find("```", opening.end())
        if end < 0:
            return
        yield opening[1] or "", text[opening.end() : end]
        at = end + 3


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
