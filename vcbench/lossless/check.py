"""The lossless gate over a recorded run: every VeriCache answer must be full KV's, id for id, and earned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vcbench.errors import RecordError, SchemaVersionError
from vcbench.lossless.answers import Arm, arm_of_run
from vcbench.lossless.cards import Card, cards_of
from vcbench.lossless.guards import guards
from vcbench.lossless.outcome import BITWISE, CheckResult
from vcbench.lossless.render import render
from vcbench.lossless.result import CellResult
from vcbench.lossless.selection import EVERYTHING, Selection
from vcbench.lossless.turns import judged_requests
from vcbench.lossless.verdicts import judge
from vcbench.records.reader import CellInfo, Run, load_run

__all__ = ["check_loaded", "check_run", "render", "unreadable"]


def check_run(path: Path | str, selection: Selection = EVERYTHING) -> CheckResult:
    """The gate's answer for a run's directory. Raises RecordError where the records are damaged."""
    try:
        return check_loaded(load_run(path), selection)
    except SchemaVersionError as error:
        return unreadable(Path(path), error)


def unreadable(path: Path, error: RecordError) -> CheckResult:
    """The answer for damaged records, and for those of another schema version, which cannot be compared."""
    if isinstance(error, SchemaVersionError):
        return CheckResult(run=path.name, exactness="unknown", differences=(str(error),))
    return CheckResult(run=path.name, exactness="unknown", problems=(str(error),))


def check_loaded(run: Run, selection: Selection = EVERYTHING) -> CheckResult:
    """The gate's answer for a run that was read already."""
    selection.refuse_unknown(run.cells, (request for _, request in run.prompts))
    exactness = _exactness(run)
    checked = [
        _check_cell(run, cell, task, selection, bitwise=exactness == BITWISE)
        for task in run.tasks
        for cell in run.cells
        if cell.arm != "full" and cell.answers(task) and selection.has_cell(cell)
    ]
    problems = list(run.dropped)
    if not run.complete:
        problems.append("the run is not complete; the same `vcbench run` command finishes it")
    return CheckResult(
        run=run.name,
        exactness=exactness,
        cells=tuple(result for result, _ in checked),
        problems=tuple(problems),
        cards=tuple(card for _, cards in checked for card in cards),
        fault=run.provenance.get("injected_fault"),
        remarks=_limits(run),
    )


def _exactness(run: Run) -> str:
    if not run.gives("logit_hashes"):
        return "unknown"
    engine = run.config.get("engine")
    return str(engine.get("exactness", "unknown")) if isinstance(engine, dict) else "unknown"


def _limits(run: Run) -> tuple[str, ...]:
    """What of the gate's evidence the run's backend cannot give."""
    found = []
    if not run.gives("logit_hashes"):
        found.append("the backend gives no hashes of logits, so that ids alone are compared")
    if not run.gives("kv_bytes"):
        found.append("the backend says nothing of its caches: of the method there is no sign but its drafts")
    return tuple(found)


def _check_cell(
    run: Run, cell: CellInfo, task: str, selection: Selection, *, bitwise: bool
) -> tuple[CellResult, list[Card]]:
    answered = [line for line in run.requests_of(cell, task) if line.error is None]
    baseline, parents = run.baseline(task), run.parents(task)
    references = [] if baseline is None else [line for line in run.requests_of(baseline, task) if line.error is None]
    guarded = guards(
        cell,
        answered,
        bitwise=bitwise,
        reference=references if run.gives("logit_hashes") else None,
        caches=run.gives("kv_bytes"),
    )
    if cell.arm != "vericache":
        return CellResult(cell=cell, task=task, verdicts=(), guards=guarded), []
    reference = arm_of_run(run, baseline, task) if baseline is not None else _nobody()
    method = arm_of_run(run, cell, task)
    verdicts = tuple(
        replace(
            judge(task, request, reference, method, bitwise=bitwise), prompt=_first_prompt(run, parents, task, request)
        )
        for request in judged_requests(run, baseline, cell, task)
        if selection.has_request(request)
    )
    result = CellResult(cell=cell, task=task, verdicts=verdicts, guards=guarded, arms=(reference, method))
    options = ["--cell", cell.label, "--controls"]
    return result, cards_of(result, reference, method, ["vcbench", "check", str(run.path)], options)


def _first_prompt(run: Run, parents: Mapping[str, str], task: str, request: str) -> str:
    """The hash of the prompt that a request's conversation began with: its turns are one sample."""
    seen: set[str] = set()
    while request in parents and request not in seen:
        seen.add(request)
        request = parents[request]
    line = run.prompts.get((task, request))
    return "" if line is None else line.prompt_sha256


def _nobody() -> Arm:
    """In place of the full-KV cell of a run that has none."""
    return Arm(name="full KV", settings={}, answers={})
