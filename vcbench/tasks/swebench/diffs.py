"""Diffs in an answer, found by their own lines: headers, hunks, and what a hunk says that it holds.

Fences, tags and prose around a diff, or fences of a file inside it, so take no part of it away. Nothing is repaired: a
diff comes back as it stands, less the indentation of its block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`\n]*)$")
START = re.compile(r"([ \t]*)(?:diff --git \S|--- \S|@@ -\d)")
EXTENDED = re.compile(
    r"(?:index |old mode |new mode |deleted file mode |new file mode |similarity index |dissimilarity index |"
    r"rename (?:from|to) |copy (?:from|to) |Binary files )"
)
HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
MAIL = re.compile(r"^From [0-9a-f]{7,40} ", re.MULTILINE)
SIGNATURE = re.compile(r"-- ?$")


@dataclass(frozen=True, slots=True)
class Section:
    """A diff of one file: lines `start` to `end`, its path ("" without headers), the old lines that it replaces."""

    start: int
    end: int
    indent: str
    path: str
    ranges: tuple[range, ...]


@dataclass(slots=True)
class _Reader:
    """Reads one section. `fenced`: all to the fence's end belongs to it, also beyond what its hunks say."""

    lines: Sequence[str]
    at: int
    indent: str
    fenced: bool

    def line(self, offset: int = 0) -> str | None:
        """The line without the block's indentation; None past the end, and where a line has another indentation."""
        if self.at + offset >= len(self.lines):
            return None
        line = self.lines[self.at + offset]
        if line.startswith(self.indent):
            return line[len(self.indent) :]
        return None if line.strip() else ""

    def section(self) -> Section:
        """The section that begins here."""
        start, path = self.at, self._headers()
        ranges = []
        while (found := self._next_hunk()) is not None:
            ranges.append(found)
        return Section(start, self.at, self.indent, path, tuple(ranges))

    def _headers(self) -> str:
        """Passes over the headers. The path is the new one, or the old one of a file that goes."""
        line, path = self.line() or "", ""
        if line.startswith("diff --git "):
            path = line.rpartition(" b/")[2]
            self.at += 1
            while EXTENDED.match(self.line() or ""):
                self.at += 1
        if self.is_pair():
            old, new = (_path(self.line(offset) or "") for offset in (0, 1))
            path = old if new == "/dev/null" else new
            self.at += 2
        return path

    def is_pair(self) -> bool:
        """Whether the two headers of a file stand here."""
        return (self.line() or "").startswith("--- ") and (self.line(1) or "").startswith("+++ ")

    def _next_hunk(self) -> range | None:
        blank = 0
        while self.line(blank) == "":
            blank += 1
        head = self.line(blank)
        if head is None or not head.startswith("@@"):
            return None
        self.at += blank + 1
        said = HUNK.match(head)
        if said is None:
            self._body(None, None)
            return range(0)
        old, new = (int(count) if count is not None else 1 for count in (said[2], said[4]))
        self._body(old, new)
        return range(int(said[1]), int(said[1]) + max(old, 1))

    def _body(self, old: int | None, new: int | None) -> None:
        """Passes over a hunk's lines. old, new: lines that it says it has of each file, None where it does not say."""
        while (line := self.line()) is not None:
            whole = old is not None and new is not None and old <= 0 and new <= 0
            if self._ends(line, whole=whole, wanted=bool(old and new and old > 0 and new > 0)):
                return
            if old is not None and new is not None:
                old -= line[:1] in (" ", "-", "")
                new -= line[:1] in (" ", "+", "")
            self.at += 1

    def _ends(self, line: str, *, whole: bool, wanted: bool) -> bool:
        if self.is_pair() and (whole or (self.line(2) or "").startswith("@@")):
            return True
        if line.startswith("\\"):
            return False
        if whole and (not self.fenced or SIGNATURE.match(line)):
            return True
        if line:
            return line[0] not in " +-"
        # An empty line is one of the file whose leading space got lost, if the hunk goes on.
        ahead = 1
        while self.line(ahead) == "":
            ahead += 1
        following = self.line(ahead)
        return not wanted and (following is None or following[:1] not in (" ", "+", "-", "@"))


def joined(text: str, *, fenced: bool = False) -> str | None:
    """The diffs of a text as one patch that ends in a newline; None where it has none.

    The first diff of a file counts; a later block adds other files, and other lines of a file. Patches as mails build
    on each other, so they are all taken.

    Args:
        fenced: the whole text is the block of a diff.
    """
    lines = text.removesuffix("\n").split("\n")
    blocks = list(_blocks(lines, fenced=fenced))
    if any(section.path for block in blocks for section in block):
        blocks = [block for block in blocks if block[0].path]
    else:
        blocks = blocks[:1]
    series = MAIL.search(text) is not None
    taken: dict[str, list[range]] = {}
    parts: list[str] = []
    for block in blocks:
        if series or all(_adds(section, taken.get(section.path)) for section in block):
            parts += _shown(lines, block)
            for section in block:
                taken.setdefault(section.path, []).extend(section.ranges)
    return "".join(f"{line}\n" for line in parts) or None


def _blocks(lines: Sequence[str], *, fenced: bool) -> Iterator[list[Section]]:
    """Sections one right after the other, as they stand in one fence."""
    block: list[Section] = []
    for section in _sections(lines, fenced=fenced):
        if block and any(line.strip() for line in lines[block[-1].end : section.start]):
            yield block
            block = []
        block.append(section)
    if block:
        yield block


def _sections(lines: Sequence[str], *, fenced: bool) -> Iterator[Section]:
    at, fence = 0, ""
    while at < len(lines):
        if found := FENCE.match(lines[at]):
            closes = bool(fence) and not found[3].strip() and found[2].startswith(fence)
            fence = "" if closes else found[2]
        elif found := START.match(lines[at]):
            reader = _Reader(lines, at, found[1], fenced or bool(fence))
            if not lines[at].startswith("--- ", len(found[1])) or reader.is_pair():
                yield (section := reader.section())
                at = max(section.end, at + 1)
                continue
        at += 1


def _adds(section: Section, known: Sequence[range] | None) -> bool:
    """Whether a section says something new of its file."""
    if known is None:
        return True
    return bool(section.ranges) and not any(
        ours.start < theirs.stop and theirs.start < ours.stop for ours in section.ranges for theirs in known
    )


def _shown(lines: Sequence[str], block: Sequence[Section]) -> list[str]:
    return [line.removeprefix(block[0].indent) for line in lines[block[0].start : block[-1].end]]


def _path(header: str) -> str:
    name = header[4:].partition("\t")[0].strip()
    return name if name == "/dev/null" else re.sub(r"^[ab]/", "", name)
