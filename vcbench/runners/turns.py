"""Follow-up turns: which cells a prompt is asked of, and what their answers lead to.

A cell follows its own answers. Cells that answered alike share one follow-up, which is then prefilled once for all of
them. What was found out is recorded in `turn` lines, after the answers, so that no timed loop pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcbench.config.schema import TaskConfig
from vcbench.errors import RecordError
from vcbench.records.schema import Line, PromptLine, RequestLine, TurnLine
from vcbench.records.store import RunDirectory
from vcbench.runners.plan import Cell
from vcbench.runners.setup import Workbench
from vcbench.tasks.base import Answer, Prompt


class Turns:
    """The conversations of one run; without tasks that have follow-ups it holds nothing."""

    def __init__(self, bench: Workbench, directory: RunDirectory) -> None:
        self.bench, self.directory = bench, directory
        self.tasks = {name for name, source in bench.sources.items() if source.has_follow_ups()}
        self.prompts: dict[tuple[str, str], Prompt] = {}
        self.lines: dict[tuple[str, str, str], TurnLine] = {}
        self.answers: dict[tuple[str, str, str], Answer] = {}
        self.asked: dict[tuple[str, str], set[str]] = {}
        self.tails: dict[tuple[str, str], str] = {}

    def note(self, line: Line) -> None:
        """Remembers a line of the records, whether of this process or of an earlier one."""
        if line.task not in self.tasks:
            return
        match line:
            case PromptLine():
                self.tails[line.task, line.request] = line.tail
                self.prompts[line.task, line.request] = Prompt(
                    id=line.request,
                    ids=tuple(line.prompt_ids),
                    document_sha256=line.document_sha256,
                    target=line.target,
                    meta=line.meta,
                )
            case RequestLine() if line.finish_reason != "error":
                self.answers[line.cell, line.task, line.request] = Answer(
                    text=line.text,
                    token_ids=line.token_ids,
                    finish_reason=line.finish_reason,
                    prompt_tail=self.tails.get((line.task, line.request), ""),
                )
            case TurnLine():
                self.lines[line.cell, line.task, line.request] = line
                if line.follow_up is not None:
                    self.asked.setdefault((line.task, line.follow_up), set()).add(line.cell)

    def cells(self, task: TaskConfig, prompt: Prompt) -> list[Cell]:
        """The cells that a prompt is asked of, `full` first: a follow-up those alone whose answers led to it."""
        cells = self.bench.plan.of_task(task.name)
        asked = self.asked.get((task.name, prompt.id))
        return [cell for cell in cells if asked is None or cell.id in asked]

    def unfinished(self) -> bool:
        """Whether an answer has not been followed yet, or a follow-up has not been asked."""
        answered = {(task, request) for _, task, request in self.answers}
        return any(key not in self.lines for key in self.answers) or not self.asked.keys() <= answered

    def after(self, task: TaskConfig, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The follow-ups of all answers to these prompts, each once; new ones are recorded."""
        if task.name not in self.tasks:
            return []
        found: dict[str, Prompt] = {}
        for prompt in prompts:
            for cell in self.cells(task, prompt):
                if (follow_up := self._after(cell, prompt)) is not None:
                    found.setdefault(follow_up.id, follow_up)
        return list(found.values())

    def _after(self, cell: Cell, prompt: Prompt) -> Prompt | None:
        key = (cell.id, cell.task.name, prompt.id)
        answer, line = self.answers.get(key), self.lines.get(key)
        if answer is None or (line is not None and line.follow_up is None):
            return None
        if line is not None and (known := self.prompts.get((line.task, line.follow_up or ""))) is not None:
            return known
        follow_up = self.bench.sources[cell.task.name].follow_up(prompt, answer, self.bench.tokenizer)
        name = follow_up.id if follow_up is not None else None
        if line is None:
            line = TurnLine(cell=cell.id, task=cell.task.name, request=prompt.id, follow_up=name)
            self.directory.append(line)
            self.note(line)
        elif line.follow_up != name:
            raise RecordError(
                f"{self.directory.path}: request {prompt.id!r} led to {line.follow_up!r} when it was recorded, and "
                f"leads to {name!r} now: the task's data has changed; choose another run name"
            )
        return follow_up
