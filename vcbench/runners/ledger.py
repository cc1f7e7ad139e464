"""The ledger of a run: every recorded line, indexed once for all who ask, and the only way to record another.

What is answered, measured and followed up is read here alone, whether this process recorded it or an earlier one.
"""

from __future__ import annotations

from vcbench.records.schema import DivergenceLine, Line, PromptLine, RequestLine, TurnLine
from vcbench.records.store import RunDirectory

PromptKey = tuple[str, str]
"""Task and request."""
Key = tuple[str, str, str]
"""Cell, task and request."""


class Ledger:
    """A run's lines as they stand.

    tails: prompts that have a line, each with the text of its last tokens. answers, turns, measured: the lines of each
    cell's requests; a failed request has an answer too, whose finish reason is `error`. asked: the cells that a
    follow-up is asked of. follow_ups: their prompts, which no task can name before the answers are there.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self.tails: dict[PromptKey, str] = {}
        self.answers: dict[Key, RequestLine] = {}
        self.turns: dict[Key, TurnLine] = {}
        self.measured: set[Key] = set()
        self.asked: dict[PromptKey, set[str]] = {}
        self.follow_ups: dict[PromptKey, PromptLine] = {}
        for line in directory.lines():
            self._enter(line)

    @property
    def place(self) -> str:
        """Where the records lie, for messages."""
        return str(self._directory.path)

    def append(self, line: Line) -> None:
        """Records a line. Raises RecordError as `RunDirectory.append` does, and then nothing is entered."""
        self._directory.append(line)
        self._enter(line)

    def answer(self, cell: str, task: str, request: str) -> RequestLine | None:
        """What a cell answered; None while it has not, or where it failed."""
        line = self.answers.get((cell, task, request))
        return None if line is None or failed(line) else line

    def failures(self) -> dict[PromptKey, str]:
        """The requests that failed in some cell, each with the first reason given, in the order recorded."""
        found: dict[PromptKey, str] = {}
        for line in self.answers.values():
            if failed(line):
                found.setdefault((line.task, line.request), line.error or "no reason given")
        return found

    def _enter(self, line: Line) -> None:
        match line:
            case PromptLine():
                self.tails[line.task, line.request] = line.tail
                # A follow-up's turn line is written before its prompt.
                if (line.task, line.request) in self.asked:
                    self.follow_ups[line.task, line.request] = line
            case RequestLine():
                self.answers[line.cell, line.task, line.request] = line
            case TurnLine():
                self.turns[line.cell, line.task, line.request] = line
                if line.follow_up is not None:
                    self.asked.setdefault((line.task, line.follow_up), set()).add(line.cell)
            case DivergenceLine():
                self.measured.add((line.cell, line.task, line.request))


def failed(line: RequestLine) -> bool:
    """Whether a request ended without an answer."""
    return line.finish_reason == "error"
