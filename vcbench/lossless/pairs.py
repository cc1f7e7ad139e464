"""The lossless gate over two arms given separately: outputs of other engines, or runs of vcbench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vcbench.errors import RecordError, SchemaVersionError, UsageError
from vcbench.lossless.answers import Arm, arm_of_run, differences, unstated
from vcbench.lossless.cards import Card, cards_of
from vcbench.lossless.guards import outputs_guards, outputs_notes
from vcbench.lossless.outcome import NEAR_TIES, CheckResult
from vcbench.lossless.outputs import read_outputs
from vcbench.lossless.result import CellResult
from vcbench.lossless.selection import EVERYTHING, Selection
from vcbench.lossless.verdicts import judge
from vcbench.records.files import PROVENANCE
from vcbench.records.reader import CellInfo, load_run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """One arm of two that are given separately, and the cell that it came from."""

    task: str
    cell: CellInfo
    arm: Arm


def check_files(reference: Path, method: Path, selection: Selection = EVERYTHING) -> CheckResult:
    """The gate's answer for outputs given separately: JSONL files of other engines, or runs of vcbench.

    Of a run, the reference is full KV and the method every VeriCache cell (full KV where it has none).
    """
    if reference.resolve() == method.resolve():
        raise UsageError(f"{reference} is given twice; outputs that are compared with themselves show nothing")
    name = f"{_short(reference, method)} against {_short(method, reference)}"
    try:
        references = _sources(reference, _short(reference, method), as_reference=True)
        methods = _sources(method, _short(method, reference), as_reference=False)
    except SchemaVersionError as error:
        return CheckResult(run=name, exactness=NEAR_TIES, differences=(str(error),))
    except RecordError as error:
        return CheckResult(run=name, exactness=NEAR_TIES, problems=(str(error),))
    pairs = [(a, b) for b in methods for a in references if a.task == b.task or "" in (a.task, b.task)]
    both = [source.arm for source in (*references, *methods)]
    selection.refuse_unknown([source.cell for source in methods], (name for arm in both for name in arm.answers))
    problems = list(dict.fromkeys(problem for arm in both for problem in arm.problems))
    if not pairs and not problems:
        problems = [f"no task in common: {_tasks(references)} against {_tasks(methods)}"]
    others = [difference for a, b in pairs for difference in differences(a.arm, b.arm)]
    silent = sorted({key for a, b in pairs for key in unstated(a.arm, b.arm)})
    command = ["vcbench", "check", str(reference), str(method)]
    checked = [_check_pair(a, b, command, selection) for a, b in pairs]
    return CheckResult(
        run=name,
        exactness=NEAR_TIES,
        cells=tuple(result for result, _ in checked),
        cards=tuple(card for _, cards in checked for card in cards),
        problems=tuple(problems),
        differences=tuple(dict.fromkeys(others)),
        remarks=(f"neither side states {', '.join(silent)}, so nobody knows whether they agree",) if silent else (),
    )


def _check_pair(a: _Source, b: _Source, command: Sequence[str], selection: Selection) -> tuple[CellResult, list[Card]]:
    task = a.task or b.task
    requests = [key for key in dict.fromkeys([*a.arm.answers, *b.arm.answers]) if selection.has_request(key)]
    result = CellResult(
        cell=b.cell,
        task=task,
        verdicts=tuple(judge(task, request, a.arm, b.arm, bitwise=False) for request in requests),
        guards=outputs_guards(a.arm, b.arm),
        notes=outputs_notes(a.arm, b.arm),
        arms=(a.arm, b.arm),
    )
    return result, cards_of(result, a.arm, b.arm, command, [])


def _sources(path: Path, name: str, *, as_reference: bool) -> list[_Source]:
    if not path.is_dir():
        arm = read_outputs(path, name)
        return [_Source(task="", cell=CellInfo(id=name, label=name, arm="outputs"), arm=arm)]
    if not (path / PROVENANCE).is_file():
        raise RecordError(f"no run in {path}: {PROVENANCE} is missing")
    run = load_run(path)
    problems = [*run.dropped, *([] if run.complete else [f"{name} is not complete"])]
    wanted = "full" if as_reference or all(cell.arm != "vericache" for cell in run.cells) else "vericache"
    found = []
    for task in run.tasks:
        for cell in run.cells:
            if cell.arm == wanted and cell.answers(task):
                arm = arm_of_run(run, cell, task)
                named = Arm(
                    name=f"{name}: {cell.label}", settings=arm.settings, answers=arm.answers, problems=tuple(problems)
                )
                found.append(_Source(task=task, cell=cell, arm=named))
    return found


def _short(path: Path, other: Path) -> str:
    """The path's last part, or all of it where the two end alike."""
    return path.name if path.name != other.name else str(path)


def _tasks(sources: Sequence[_Source]) -> str:
    return ", ".join(sorted({repr(source.task) for source in sources})) or "none"
