"""Follow-up turns: what the answers to a prompt lead to.

A cell follows its own answers. Cells that answered alike share one follow-up, which is then prefilled once for all of
them. What was found out is recorded in `turn` lines, after the answers, so that no timed loop pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from vcbench.config.schema import TaskConfig
from vcbench.errors import RecordError
from vcbench.records.schema import PromptLine, RequestLine, TurnLine
from vcbench.runners.agenda import Agenda
from vcbench.runners.ledger import failed
from vcbench.runners.plan import Cell
from vcbench.runners.setup import over_context
from vcbench.tasks.base import Answer, Prompt


class Turns:
    """The conversations of one run; without tasks that have follow-ups it finds nothing."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda, self.bench, self.ledger = agenda, agenda.bench, agenda.ledger
        tasks, sources = self.bench.config.tasks, self.bench.sources
        self.tasks = {task.name: task for task in tasks if sources[task.name].has_follow_ups()}

    def unfinished(self) -> bool:
        """Whether an answer has not been followed yet, or a follow-up has not been asked or owes a line."""
        ledger = self.ledger
        answered = [key for key, line in ledger.answers.items() if key[1] in self.tasks and not failed(line)]
        if any(key not in ledger.turns for key in answered) or not ledger.asked.keys() <= ledger.tails.keys():
            return True
        known = [(self.tasks[task], _prompt(line)) for (task, _), line in ledger.follow_ups.items()]
        return any(self.agenda.missing(task, prompt) for task, prompt in known)

    def after(self, task: TaskConfig, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The follow-ups of all answers to these prompts, each once; new ones are recorded."""
        if task.name not in self.tasks:
            return []
        found: dict[str, Prompt] = {}
        for prompt in prompts:
            for cell in self.agenda.cells(task, prompt):
                if (follow_up := self._after(cell, prompt)) is not None:
                    found.setdefault(follow_up.id, follow_up)
        return list(found.values())

    def not_asked(self) -> list[str]:
        """A line on the follow-ups that the model's context has no room for; none where all were asked."""
        reasons = [line.not_asked for line in self.ledger.turns.values() if line.not_asked]
        return [f"{len(reasons)} follow-ups are not asked; the first: {reasons[0]}"] if reasons else []

    def _after(self, cell: Cell, prompt: Prompt) -> Prompt | None:
        key = (cell.id, cell.task.name, prompt.id)
        answer, line = self.ledger.answers.get(key), self.ledger.turns.get(key)
        if answer is None or failed(answer) or (line is not None and line.follow_up is None):
            return None
        if line is not None and (known := self.ledger.follow_ups.get((line.task, line.follow_up or ""))) is not None:
            return _prompt(known)
        source = self.bench.sources[cell.task.name]
        follow_up = source.follow_up(prompt, self._answer(answer), self.bench.tokenizer)
        context = self.bench.files.architecture.max_context
        reason = over_context(cell.task, follow_up, context) if follow_up is not None else None
        follow_up = None if reason else follow_up
        name = follow_up.id if follow_up is not None else None
        if line is None:
            turn = TurnLine(cell=cell.id, task=cell.task.name, request=prompt.id, follow_up=name, not_asked=reason)
            self.ledger.append(turn)
        elif line.follow_up != name:
            raise RecordError(
                f"{self.ledger.place}: request {prompt.id!r} led to {line.follow_up!r} when it was recorded, and "
                f"leads to {name!r} now: the task's data has changed; choose another run name"
            )
        return follow_up

    def _answer(self, line: RequestLine) -> Answer:
        return Answer(
            text=line.text,
            token_ids=line.token_ids,
            finish_reason=line.finish_reason,
            prompt_tail=self.ledger.tails[line.task, line.request],
        )


def _prompt(line: PromptLine) -> Prompt:
    return Prompt(
        id=line.request,
        ids=tuple(line.prompt_ids),
        document_sha256=line.document_sha256,
        target=line.target,
        meta=line.meta,
    )
