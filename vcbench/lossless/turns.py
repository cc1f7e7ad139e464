"""Which requests a cell is judged on, where conversations go on after each cell's own answers."""

from __future__ import annotations

from collections.abc import Iterator

from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import RequestLine


def judged_requests(run: Run, reference: CellInfo | None, cell: CellInfo, task: str) -> Iterator[str]:
    """The requests asked of the cell or of the reference, so that one that only one of them answered is missing.

    Left out is what only one was asked because the two had parted before: the answers where they did carry that
    verdict. Without a reference every prompt is judged.
    """
    parents = run.parents(task)
    ours = set(run.asked(cell, task))
    theirs = set(run.asked(reference, task)) if reference is not None else {r for t, r in run.prompts if t == task}
    parted: set[str] = set()
    for prompt_task, request in run.prompts:
        if prompt_task != task or request not in ours | theirs:
            continue
        parent = parents.get(request)
        alone = request not in ours & theirs
        if alone and parent is not None and (parent in parted or _differ(run, reference, cell, task, parent)):
            parted.add(request)
        else:
            yield request


def _differ(run: Run, reference: CellInfo | None, cell: CellInfo, task: str, request: str) -> bool:
    """Whether both answered, and not the same."""
    answers = [run.requests.get((each.id, task, request)) for each in (reference, cell) if each is not None]
    given = [_answer(line) for line in answers if line is not None and line.error is None]
    return len(given) == 2 and given[0] != given[1]


def _answer(line: RequestLine) -> tuple[list[int], str]:
    return line.token_ids, line.finish_reason
