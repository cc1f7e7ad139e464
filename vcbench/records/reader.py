"""A run as read back from its directory, indexed. It is never locked, so a run in progress can be read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vcbench.errors import RecordError, SchemaVersionError
from vcbench.records.codec import LineKey, decode, describe_key, line_key
from vcbench.records.files import MANIFEST, PROVENANCE, REQUESTS, explained, read_regular
from vcbench.records.head import head_problem, manifest_problem, read_config, read_provenance
from vcbench.records.schema import BatchLine, DivergenceLine, Line, PromptLine, RequestLine, TurnLine

CAPABILITIES = {
    "logit_hashes": "hashes of logits",
    "kv_bytes": "classes and bytes of caches",
    "divergence": "divergences",
    "phases": "times of drafting and verification",
    "prefill": "times of prefill",
}
"""What not every backend gives, in words."""
ARMS = ("full", "lossy", "vericache")
NAMED = 3
"""Damaged lines that an error names."""
REPAIR = "The same `vcbench run` sets damaged lines aside, in damaged.jsonl, and computes them again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellInfo:
    """One cell of a run, as provenance lists it; a cell without a task answers the prompts of all tasks.

    draft_length: tokens a round; for an adaptive one its `min`, `max` and `verify_cost`.
    cache_class: the class of cache that the cell's compressor makes, for the gate to hold the records against.
    """

    id: str
    label: str
    arm: str
    method: str | None = None
    compressor: str | None = None
    draft_length: int | Mapping[str, Any] | None = None
    full_cache: str = "memory"
    draft_weights: str = "full"
    task: str | None = None
    levels: Sequence[Mapping[str, Any]] = ()
    cache_class: str | None = None

    @property
    def longest_draft(self) -> int | None:
        """The most tokens that a round drafts; None where the cell does not draft."""
        length = self.draft_length
        longest = length.get("max") if isinstance(length, Mapping) else length
        return longest if isinstance(longest, int) else None

    def answers(self, task: str) -> bool:
        """Whether the cell has requests of that task."""
        return self.task is None or self.task == task


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything a run recorded. `complete`: its manifest is there and vouches for these very records.

    sha256: of `requests.jsonl` as it was read.
    set_aside: prompts that are recorded, but are not asked by the configuration as it is now; they and what belongs to
        them are left out below.
    """

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    cells: tuple[CellInfo, ...]
    complete: bool
    dropped: list[str]
    sha256: str = ""
    set_aside: int = 0
    prompts: dict[tuple[str, str], PromptLine] = field(default_factory=dict)
    requests: dict[tuple[str, str, str], RequestLine] = field(default_factory=dict)
    divergences: dict[tuple[str, str, str], DivergenceLine] = field(default_factory=dict)
    turns: dict[tuple[str, str, str], TurnLine] = field(default_factory=dict)
    batches: list[BatchLine] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.resolve().name

    def gives(self, what: str) -> bool:
        """Whether the run's backend can give `logit_hashes`, `kv_bytes`, ...; one that says nothing is vcbench's."""
        backend = self.provenance.get("backend")
        stated = backend.get("capabilities") if isinstance(backend, dict) else None
        return not isinstance(stated, dict) or bool(stated.get(what, True))

    def lacks(self) -> list[str]:
        """In words, what the run's backend cannot give, so that it is missing in records and tables."""
        return [words for what, words in CAPABILITIES.items() if not self.gives(what)]

    @property
    def tasks(self) -> list[str]:
        """Tasks that have prompts or cells, in order of appearance."""
        return list(dict.fromkeys([task for task, _ in self.prompts] + [c.task for c in self.cells if c.task]))

    def requests_of(self, cell: CellInfo, task: str) -> list[RequestLine]:
        """The cell's answers to that task, in the order of the prompts."""
        return [
            self.requests[cell.id, task, request]
            for prompt_task, request in self.prompts
            if prompt_task == task and (cell.id, task, request) in self.requests
        ]

    def asked(self, cell: CellInfo, task: str) -> list[str]:
        """The requests that a cell was asked, in the order of the prompts: the task's own, and those that its answers
        led to."""
        parents = self.parents(task)
        return [
            request
            for prompt_task, request in self.prompts
            if prompt_task == task and (request not in parents or self._leads(cell, task, parents[request], request))
        ]

    def parents(self, task: str) -> dict[str, str]:
        """The request that each follow-up of the task follows."""
        turns = (turn for turn in self.turns.values() if turn.task == task)
        return {turn.follow_up: turn.request for turn in turns if turn.follow_up is not None}

    def _leads(self, cell: CellInfo, task: str, parent: str, request: str) -> bool:
        turn = self.turns.get((cell.id, task, parent))
        return turn is not None and turn.follow_up == request

    def baseline(self, task: str) -> CellInfo | None:
        """The full-KV cell that answers the task."""
        return next((cell for cell in self.cells if cell.arm == "full" and cell.answers(task)), None)


def load_run(path: Path | str, *, strict: bool = True, all_prompts: bool = False) -> Run:
    """The run in a directory; with `all_prompts` also what its configuration no longer asks.

    Raises RecordError on a missing or damaged file, naming the line. Not `strict`, damaged lines are left out and named
    in `dropped`, as `vcbench run` sees a run that it takes up.
    """
    path = Path(path)
    if not path.is_dir():
        raise RecordError(f"no run in {path}: there is no such directory; `vcbench runs` lists the runs")
    provenance, config = read_provenance(path), read_config(path)
    data = read_requests(path)
    parsed = parse(data, path / REQUESTS)
    if strict:
        parsed.refuse_damage()
    dropped = [*parsed.notes(), *([parsed.half] if parsed.half else [])]
    complete = (path / MANIFEST).exists()
    unlike = head_problem(path, provenance)
    problem = manifest_problem(path, data) if complete else ""
    if unlike or problem:
        complete = False
        dropped.append(unlike or f"{path / MANIFEST}: {problem}")
    run = Run(
        path=path,
        config=config,
        provenance=provenance,
        cells=_cells(provenance.get("cells"), path / PROVENANCE),
        complete=complete,
        dropped=dropped,
        sha256=hashlib.sha256(data).hexdigest(),
    )
    _index(run, parsed.lines, strict=strict)
    if not all_prompts:
        _keep_asked(run)
    return run


def read_requests(path: Path) -> bytes:
    """The bytes of a run's records; empty where none were written."""
    with explained(path, "read"):
        try:
            return read_regular(path / REQUESTS)
        except FileNotFoundError:
            return b""


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that is not what was written, as it stands, and why."""

    number: int
    text: bytes
    reason: str


@dataclass(slots=True, kw_only=True)
class Parsed:
    """The records of a run, line by line. `intact`: the bytes of `lines`; `half`: what a cut-off last line says."""

    where: Path
    lines: list[Line] = field(default_factory=list)
    intact: list[bytes] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    half: str = ""

    def notes(self) -> list[str]:
        """The damage in words, a note a line."""
        return [damage.reason for damage in self.damaged]

    def refuse_damage(self) -> None:
        """Raises RecordError, naming the first damaged lines, where there are any."""
        if self.damaged:
            shown = "; ".join(dict.fromkeys(damage.reason for damage in self.damaged[:NAMED]))
            more = f"; and {len(self.damaged) - NAMED} more" if len(self.damaged) > NAMED else ""
            raise RecordError(f"{shown}{more}. {REPAIR}")


def parse(data: bytes, where: Path) -> Parsed:
    """Every line, the damaged ones apart: broken, with a checksum that does not fit, or for what another is for too.

    Raises SchemaVersionError on a line of a schema version that this vcbench does not read.
    """
    *whole, rest = data.split(b"\n")
    parsed = Parsed(where=where)
    good: dict[int, tuple[Line, bytes]] = {}
    numbers: dict[LineKey, list[int]] = {}
    for number, text in enumerate(whole, start=1):
        try:
            line = decode(text, f"{where}, line {number}")
        except SchemaVersionError:
            raise
        except RecordError as error:
            parsed.damaged.append(Damage(number, text, str(error)))
            continue
        good[number] = (line, text)
        numbers.setdefault(line_key(line), []).append(number)
    for key, same in numbers.items():
        if len(same) > 1:
            listed = f"{', '.join(map(str, same[:-1]))} and {same[-1]}"
            reason = f"{where}, lines {listed}: {'both' if len(same) == 2 else 'all'} are for {describe_key(key)}"
            parsed.damaged += [Damage(number, good.pop(number)[1], reason) for number in same]
    parsed.damaged.sort(key=lambda damage: damage.number)
    for line, text in good.values():
        parsed.lines.append(line)
        parsed.intact.append(text)
    if rest:
        parsed.half = f"{where}, line {len(whole) + 1}: half written ({len(rest)} bytes), dropped"
    return parsed


def _cells(listed: Any, where: Path) -> tuple[CellInfo, ...]:
    if not isinstance(listed, list):
        raise RecordError(f"{where}: `cells` must list the run's cells; the run is damaged")
    cells = []
    for number, entry in enumerate(listed):
        if not isinstance(entry, Mapping) or not all(isinstance(entry.get(key), str) for key in ("id", "label", "arm")):
            raise RecordError(f"{where}: cells[{number}] needs an id, a label and an arm")
        cells.append(_cell(entry, f"{where}: cells[{number}]"))
    if len({(cell.id, cell.task) for cell in cells}) != len(cells):
        raise RecordError(f"{where}: two cells have the same id")
    return tuple(cells)


def _cell(entry: Mapping[str, Any], where: str) -> CellInfo:
    """One cell. Raises RecordError where a value cannot be."""
    for key in ("method", "compressor", "task", "cache_class", "full_cache"):
        value = entry.get(key)
        if not isinstance(value, str) and (value is not None or key == "full_cache") and key in entry:
            raise RecordError(f"{where}: `{key}` must be a text, found {type(value).__name__}; the run is damaged")
    length = entry.get("draft_length")
    if not (length is None or type(length) is int or isinstance(length, Mapping)):
        raise RecordError(f"{where}: `draft_length` must be a number or a mapping; the run is damaged")
    levels = entry.get("levels", ())
    if not isinstance(levels, list | tuple) or not all(isinstance(each, Mapping) and "name" in each for each in levels):
        raise RecordError(f"{where}: `levels` must list mappings with a name each; the run is damaged")
    if entry["arm"] not in ARMS:
        raise RecordError(f"{where}: `arm` must be one of {', '.join(ARMS)}, found {entry['arm']!r}")
    return CellInfo(**{key: entry[key] for key in CellInfo.__slots__ if key in entry})


def _index(run: Run, lines: list[Line], *, strict: bool) -> None:
    known = {cell.id for cell in run.cells}
    for line in lines:
        if not isinstance(line, PromptLine) and line.cell not in known:
            raise RecordError(f"{run.path / REQUESTS}: cell {line.cell!r} is not among the cells of {PROVENANCE}")
        match line:
            case PromptLine():
                run.prompts[line.task, line.request] = line
            case RequestLine():
                run.requests[line.cell, line.task, line.request] = line
            case DivergenceLine():
                run.divergences[line.cell, line.task, line.request] = line
            case TurnLine():
                run.turns[line.cell, line.task, line.request] = line
            case BatchLine():
                run.batches.append(line)
    for _, task, request in [*run.requests, *run.divergences, *run.turns]:
        if strict and (task, request) not in run.prompts:
            raise RecordError(f"{run.path / REQUESTS}: task {task!r}, request {request!r} has no prompt line. {REPAIR}")


def _keep_asked(run: Run) -> None:
    """Leaves out what belongs to prompts that a later configuration asks no more, and puts the others in its order."""
    listed = run.provenance.get("asked")
    if listed is None:
        return
    if not isinstance(listed, Mapping) or not all(isinstance(names, list) for names in listed.values()):
        raise RecordError(f"{run.path / PROVENANCE}: `asked` must list the requests of each task; the run is damaged")
    asked = [(str(task), str(name)) for task, names in listed.items() for name in names]
    wanted = dict.fromkeys(asked)
    follow_ups = [(turn.task, turn.request, turn.follow_up) for turn in run.turns.values() if turn.follow_up]
    grown = True
    while grown:
        more = [(task, name) for task, parent, name in follow_ups if (task, parent) in wanted]
        grown = not wanted.keys() >= set(more)
        wanted |= dict.fromkeys(more)
    prompts = {key: run.prompts[key] for key in wanted if key in run.prompts}
    run.set_aside = len(run.prompts) - len(prompts)
    run.prompts = prompts
    run.requests = {key: line for key, line in run.requests.items() if key[1:] in prompts}
    run.divergences = {key: line for key, line in run.divergences.items() if key[1:] in prompts}
    run.turns = {key: line for key, line in run.turns.items() if key[1:] in prompts}
    run.batches = [line for line in run.batches if any((line.task, name) in prompts for name in line.requests)]
