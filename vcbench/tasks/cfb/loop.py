"""The interactive mode: calls against the golden ones that are open, observations from the recording, until text comes.

Golden calls may be made early or late: after a turn with a match the next golden step is opened too. Calls that only a
live API or a judge could decide are taken for right as the conversation goes on, and counted apart.
Source: the behaviour of ComplexFuncBench's published runner; where this one differs, `docs/tasks.md` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from vcbench.tasks.cfb.conversations import ExactArguments, Step
from vcbench.tasks.cfb.rules import ErrorType, align, definite_error, format_problem, is_same
from vcbench.tasks.tool_calls.base import Parsed, Signatures, ToolCall, written

PROBLEM = written(
    {
        "api_status": True,
        "content": "There is a problem with your api call, please double-check for possible problems.",
    }
)
"""What comes back for a call that is not the golden one: the benchmark's own words, since models read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one answer amounts to.

    matched, undecided: golden calls made for the first time. `results`: one observation a call, where the conversation
    goes on. `success` and `lenient`, which takes undecided calls for right, are None until it has ended.
    """

    matched: int = 0
    undecided: int = 0
    errors: tuple[ErrorType, ...] = ()
    results: tuple[str, ...] = ()
    success: bool | None = None
    lenient: bool | None = None

    @property
    def ended(self) -> bool:
        """Whether this was the conversation's last turn."""
        return self.success is not None


@dataclass(frozen=True, slots=True)
class _Golden:
    call: ToolCall
    result: str
    step: int


@dataclass(slots=True, kw_only=True)
class Loop:
    """A conversation in progress. `opened`: golden steps whose calls may be made; `done`: numbers of those made."""

    steps: Sequence[Step]
    signatures: Signatures
    exact_arguments: ExactArguments
    free_functions: Sequence[str]
    max_turns: int
    opened: int = 0
    turns: int = 0
    undecided: int = 0
    done: set[int] = field(default_factory=set)
    golden: list[_Golden] = field(init=False)

    def __post_init__(self) -> None:
        self.golden = [
            _Golden(call, step.results[index] if index < len(step.results) else "", number)
            for number, step in enumerate(self.steps)
            for index, call in enumerate(step.calls)
        ]
        self.opened = 1
        self._pass_optional()

    def take(self, parsed: Parsed) -> Turn:
        """The answer's outcome; the conversation moves on by it."""
        self.turns += 1
        if parsed.errors:
            return _failed("decode_error", len(parsed.errors))
        if not parsed.calls:
            return self._final()
        if not self._open():
            return _failed("hallucination", len(parsed.calls))
        turn = self._compare(parsed.calls)
        if turn.ended or self.turns < self.max_turns:
            return turn
        return replace(turn, errors=(*turn.errors, "turn_limit"), results=(), success=False, lenient=False)

    def _final(self) -> Turn:
        left = [i for i in self._open() if not self._is_optional(self.golden[i].call)]
        complete = self.opened == len(self.steps) and not left
        success = complete and not self.undecided
        return Turn(errors=() if complete else ("stop_early",), success=success, lenient=complete)

    def _compare(self, calls: Sequence[ToolCall]) -> Turn:
        open_ = self._open()
        results: list[str] = [PROBLEM] * len(calls)
        errors: list[ErrorType] = []
        right, undecided = set[int](), set[int]()
        malformed = 0
        partners = self._partners(calls, open_)
        for i, call in enumerate(calls):
            partner = partners.get(i)
            if partner is not None and is_same(call, self.golden[partner].call):
                right.add(partner)
                results[i] = self.golden[partner].result
            elif (problem := format_problem(call, self.signatures)) is not None:
                malformed += 1
                errors.append(problem.type)
                results[i] = written({"error": problem.message})
            elif partner is None:
                errors.append("hallucination")
            elif (error := definite_error(call, self.golden[partner].call, self.exact_arguments)) is not None:
                errors.append(error)
            else:
                undecided.add(partner)
                results[i] = self.golden[partner].result
        right |= self._twins(right)
        turn = Turn(matched=len(right - self.done), undecided=len(undecided), errors=tuple(errors))
        if not (right or undecided or malformed):
            return replace(turn, success=False, lenient=False)
        self.undecided += len(undecided)
        self.done |= right | undecided
        if right or undecided:
            self.opened = min(self.opened + 1, len(self.steps))
        self._pass_optional()
        return replace(turn, results=tuple(results))

    def _partners(self, calls: Sequence[ToolCall], open_: Sequence[int]) -> dict[int, int]:
        """The golden call that each call stands for: one that is open, or exactly an optional one at any time."""
        partners: dict[int, int] = {}
        for i, call in enumerate(calls):
            if not any(is_same(call, self.golden[j].call) for j in open_):
                optional = (j for j, each in enumerate(self.golden) if each.call.name in self.free_functions)
                found = next((j for j in optional if is_same(call, self.golden[j].call)), None)
                if found is not None:
                    partners[i] = found
        rest = [i for i in range(len(calls)) if i not in partners]
        pairs = align([calls[i] for i in rest], [self.golden[j].call for j in open_])
        return partners | {rest[a]: open_[b] for a, b in pairs}

    def _twins(self, made: Iterable[int]) -> set[int]:
        """Optional calls equal to one that was made: a look-up that was done need not be done again."""
        calls = [self.golden[j].call for j in made if self.golden[j].call.name in self.free_functions]
        return {j for j, each in enumerate(self.golden) if any(is_same(call, each.call) for call in calls)}

    def _open(self) -> list[int]:
        return [j for j, each in enumerate(self.golden) if each.step < self.opened and j not in self.done]

    def _is_optional(self, call: ToolCall) -> bool:
        return call.name in self.free_functions or _finds_one_hotel(call)

    def _pass_optional(self) -> None:
        """Opens the next step where nothing but optional calls is open, or where a search for one hotel by name is."""
        calls = [self.golden[j].call for j in self._open()]
        if any(map(_finds_one_hotel, calls)) or all(call.name in self.free_functions for call in calls):
            self.opened = min(self.opened + 1, len(self.steps))


def _failed(error: ErrorType, count: int) -> Turn:
    return Turn(errors=(error,) * count, success=False, lenient=False)


def _finds_one_hotel(call: ToolCall) -> bool:
    return call.name == "Search_Hotels" and call.arguments.get("search_type") == "hotel"
