"""Answers that a new run need not compute, since an earlier one holds them: the same cell id, the same prompt.

A cell's id covers everything that its answers depend on, and a prompt line holds the hash of what was asked; where both
agree, the lines are copied. Wall clocks come along, so an earlier run of another batch size or thread count gives none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from vcbench import registry
from vcbench.backends.cells import Cell
from vcbench.backends.sources import plugin_sha256
from vcbench.records.codec import plain
from vcbench.records.files import REQUESTS
from vcbench.records.reader import Run, parse, read_requests
from vcbench.records.schema import CHECKED_SINCE, BatchLine, DivergenceLine, Line, PromptLine, RequestLine, TurnLine
from vcbench.runners import recording
from vcbench.runners.setup import Workbench
from vcbench.tasks.base import Prompt

PLACES = ("line",)
"""Keys of a prompt's `meta` that say where it stood in its file, and nothing about what was asked."""


@dataclass(slots=True)
class Carried:
    """What an earlier run gives to a new one; `obstacle` says why it gives nothing, where it could have."""

    source: Run
    lines: list[Line] = field(default_factory=list)
    obstacle: str = ""

    @property
    def answers(self) -> int:
        """How many answers are among the lines."""
        return sum(isinstance(line, RequestLine) for line in self.lines)

    @property
    def cells(self) -> list[str]:
        """Labels of the cells that the answers are of."""
        ids = {line.cell for line in self.lines if isinstance(line, RequestLine)}
        return list(dict.fromkeys(cell.label for cell in self.source.cells if cell.id in ids))

    def entry(self, name: str) -> dict[str, Any]:
        """What provenance says of it. name: what the earlier run is called from now on."""
        return {"run": name, "records_sha256": self.source.sha256, "answers": self.answers, "cells": self.cells}


def carry(source: Run, bench: Workbench) -> Carried:
    """The lines of `source` that hold for the run that `bench` prepares."""
    carried = Carried(source)
    shared = {(cell.task.name, cell.id) for cell in bench.plan.cells} & {
        (cell.task or "", cell.id) for cell in source.cells
    }
    if not shared:
        return carried
    carried.obstacle = _other_settings(source, bench)
    if not carried.obstacle:
        parsed = parse(read_requests(source.path), source.path / REQUESTS)
        lines = [line for line in parsed.lines if line.schema >= CHECKED_SINCE]
        carried.lines = list(_Carrier(lines, bench, {cell for _, cell in shared}).lines())
    return carried


def other_question(prompt: Prompt, line: PromptLine, *, followed: bool) -> str:
    """What of a recorded prompt is not this one's, in words; empty where all is that answers and scores rest on.

    followed: whether answers lead to further prompts, which are made from the whole document.
    """
    if prompt.sha256 != line.prompt_sha256:
        return "{} has changed"
    if followed and prompt.document_sha256 != line.document_sha256:
        return "what follows {} has changed"
    if line.target_sha256 and prompt.target_sha256 != line.target_sha256:
        return "the target of {} has changed"
    return "" if _asked_about(prompt.meta) == _asked_about(line.meta) else "what is said about {} has changed"


def _asked_about(meta: Any) -> Any:
    return json.loads(json.dumps(plain({key: value for key, value in meta.items() if key not in PLACES})))


def _other_settings(source: Run, bench: Workbench) -> str:
    """Why the earlier run's wall clocks cannot stand beside the new one's; empty where they can."""
    threads, then = (facts.get("decoding_threads") for facts in (bench.backend.facts(), source.provenance))
    if then != threads:
        return f"it decoded with {then} threads, this run does with {threads}"
    engine = source.config.get("engine")
    size = engine.get("batch_size") if isinstance(engine, dict) else None
    if size != bench.config.engine.batch_size:
        return f"it decoded in batches of {size}, this run does in batches of {bench.config.engine.batch_size}"
    return ""


class _Carrier:
    """Goes through the lines of an earlier run; kinds in their order, since each rests on those before."""

    def __init__(self, lines: Sequence[Line], bench: Workbench, cells: set[str]) -> None:
        self.bench, self.cells = bench, cells
        self.by_kind: dict[type[Any], list[Any]] = {}
        for line in lines:
            self.by_kind.setdefault(type(line), []).append(line)
        self.recorded: dict[tuple[str, str], PromptLine] = {
            (line.task, line.request): line for line in self.by_kind.get(PromptLine, ())
        }
        self.plan = {(cell.task.name, cell.id): cell for cell in bench.plan.cells}
        self.names: dict[tuple[str, str], str] = {}
        """(task, request there) to the request's name here."""
        self.answered: set[tuple[str, str, str]] = set()
        """(cell, task, request there) of each answer that was carried."""

    def lines(self) -> Iterator[Line]:
        yield from self._prompts()
        yield from self._follow_ups()
        yield from self._answers()
        yield from self._batches()
        yield from self._divergences()

    def _prompts(self) -> Iterator[Line]:
        for task, prompts in self.bench.prompts.items():
            taken: set[str] = set()
            for prompt in prompts:
                line = self._find(task, prompt, taken)
                if line is not None:
                    taken.add(line.request)
                    self.names[task, line.request] = prompt.id
                    prefill_s = line.timing.get("prefill_s", 0.0)
                    made = recording.prompt_line(task, prompt, self.bench.tokenizer, prefill_s)
                    yield replace(made, timing=line.timing)

    def _find(self, task: str, prompt: Prompt, taken: set[str]) -> PromptLine | None:
        """The recorded prompt of that name, or else one of the same content whose name was its place in the file."""
        followed = self.bench.sources[task].has_follow_ups()
        same = self.recorded.get((task, prompt.id))
        if same is not None and not other_question(prompt, same, followed=followed):
            return same if same.request not in taken else None
        if followed or not _by_place(prompt):
            return None
        for line in self.by_kind.get(PromptLine, ()):
            nameless = line.task == task and line.request not in taken and _by_place(line)
            if nameless and not other_question(prompt, line, followed=False):
                return cast(PromptLine, line)
        return None

    def _follow_ups(self) -> Iterator[Line]:
        """Turns of conversations, each before the prompt that it leads to, from the first turns on."""
        pending: list[TurnLine] = list(self.by_kind.get(TurnLine, ()))
        moved = True
        while moved:
            moved = False
            for turn in list(pending):
                if turn.cell not in self.cells or self.names.get((turn.task, turn.request)) != turn.request:
                    continue
                pending.remove(turn)
                moved = True
                line = self.recorded.get((turn.task, turn.follow_up or ""))
                if turn.follow_up is not None and line is None:
                    continue
                yield turn
                if line is not None and (line.task, line.request) not in self.names:
                    self.names[line.task, line.request] = line.request
                    yield line

    def _answers(self) -> Iterator[Line]:
        for line in self.by_kind.get(RequestLine, ()):
            name = self.names.get((line.task, line.request))
            cell = self.plan.get((line.task, line.cell))
            if name is None or cell is None or line.cell not in self.cells or line.finish_reason == "error":
                continue
            if name == line.request or _nameless(cell):
                self.answered.add((line.cell, line.task, line.request))
                yield replace(line, request=name)

    def _batches(self) -> Iterator[Line]:
        for line in self.by_kind.get(BatchLine, ()):
            if line.requests and all((line.cell, line.task, request) in self.answered for request in line.requests):
                yield replace(line, requests=[self.names[line.task, request] for request in line.requests])

    def _divergences(self) -> Iterator[Line]:
        for line in self.by_kind.get(DivergenceLine, ()):
            full = next((cell.id for cell in self.bench.plan.of_task(line.task) if cell.config.arm == "full"), "")
            keys = {(line.cell, line.task, line.request), (full, line.task, line.request)}
            if keys <= self.answered:
                yield replace(line, request=self.names[line.task, line.request])


def _by_place(prompt: Prompt | PromptLine) -> bool:
    """Whether the prompt has no name of its own, but that of the line or row where it stands."""
    name = prompt.id if isinstance(prompt, Prompt) else prompt.request
    return name in (f"line-{prompt.meta.get('line')}", f"row-{prompt.meta.get('line')}")


def _nameless(cell: Cell) -> bool:
    """Whether a cell's answers do not depend on a request's name, from which noise and seeds are drawn."""
    if cell.task.sampling.temperature:
        return False
    names = [level.method.compressor for level in cell.levels if level.method is not None]
    return not any(registry.lookup("compressor", name).seeded or plugin_sha256("compressor", name) for name in names)
