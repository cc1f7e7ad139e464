"""Rows of ComplexFuncBench as conversations: a request, then steps of golden calls with their recorded observations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from vcbench.tasks.cfb.exact_arguments import EXACT_ARGUMENTS, FREE_FUNCTIONS
from vcbench.tasks.rows import Row
from vcbench.tasks.tool_calls.base import Signature, Signatures, ToolCall, declaration_fault, written

ExactArguments = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Step:
    """Golden calls of one turn, and the observation of each as text; none where the data ends with the calls."""

    calls: tuple[ToolCall, ...]
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One row. `exact_arguments`: by function, those that no judge has to look at; `free_functions` may be left out."""

    id: str
    request: str
    steps: tuple[Step, ...]
    functions: tuple[dict[str, Any], ...]
    exact_arguments: ExactArguments
    free_functions: tuple[str, ...]
    synthetic: bool
    sha256: str

    @property
    def domain(self) -> str:
        """`Hotels` of `Hotels-12`."""
        return self.id.rpartition("-")[0] or self.id

    @property
    def signatures(self) -> Signatures:
        """What each function takes."""
        return {each["name"]: Signature.of(each.get("parameters") or {}) for each in self.functions}

    def obstacle(self, *, whole: bool) -> str:
        """Why it cannot be asked; empty if it can. `whole`: every step needs its observations."""
        if not self.steps:
            return "it has no function call"
        called = {call.name for step in self.steps for call in step.calls}
        if unknown := sorted(called - {each["name"] for each in self.functions}):
            return f"it calls {unknown[0]!r}, which is not among its functions"
        if whole and any(len(step.results) < len(step.calls) for step in self.steps):
            return "its last calls have no observations"
        return ""


def read_conversation(name: str, row: Row, exact: ExactArguments | None) -> Conversation:
    """The conversation of a row, which may bring a table of exact arguments and free functions of its own.

    Raises TaskError with file, line and field where the row is malformed.
    """
    turns = row.items("conversations")
    request = _request(row, turns)
    functions = tuple(_function(row, number, each) for number, each in enumerate(row.items("functions")))
    own = row.values.get("exact_arguments")
    if own is not None and not is_table(own):
        row.refuse("field `exact_arguments` must hold a list of arguments for each function")
    free = _names(row, "free_functions") if row.has("free_functions") else FREE_FUNCTIONS
    return Conversation(
        id=name,
        request=request,
        steps=tuple(_steps(row, turns)),
        functions=functions,
        exact_arguments=own if own is not None else exact if exact is not None else EXACT_ARGUMENTS,
        free_functions=free,
        synthetic=bool(row.values.get("synthetic")),
        sha256=hashlib.sha256(row.data).hexdigest(),
    )


def is_table(value: Any) -> TypeGuard[ExactArguments]:
    """Whether it is an object of lists of arguments."""
    return isinstance(value, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value.values()
    )


def _request(row: Row, turns: list[Any]) -> str:
    first = turns[0] if turns else None
    if not isinstance(first, dict) or first.get("role") != "user":
        row.refuse("field `conversations[0]` must be the user's turn")
    content = first.get("content")
    if not isinstance(content, str) or not content.strip():
        row.refuse("field `conversations[0].content` must be a text that is not empty")
    return content


def _steps(row: Row, turns: list[Any]) -> list[Step]:
    steps: list[Step] = []
    open_calls: tuple[ToolCall, ...] = ()
    for number, turn in enumerate(turns[1:], start=1):
        where = f"conversations[{number}]"
        role = turn.get("role") if isinstance(turn, dict) else None
        if role == "assistant" and turn.get("function_call") is not None:
            if open_calls:
                row.refuse(f"field `{where}`: the calls before it have no observations")
            open_calls = _calls(row, f"{where}.function_call", turn["function_call"])
        elif role == "observation":
            if not open_calls:
                row.refuse(f"field `{where}`: there are no calls before this observation")
            steps.append(Step(open_calls, _results(row, f"{where}.content", turn.get("content"), len(open_calls))))
            open_calls = ()
        elif role != "assistant" or not isinstance(turn.get("content"), str):
            row.refuse(
                f"field `{where}` must be an assistant's turn with `function_call` or a text as `content`, or an "
                f"observation; its role is {role!r}"
            )
    return [*steps, *([Step(open_calls)] if open_calls else [])]


def _calls(row: Row, where: str, calls: Any) -> tuple[ToolCall, ...]:
    if not isinstance(calls, list) or not calls:
        row.refuse(f"field `{where}` must be a list of calls")
    for number, call in enumerate(calls):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            row.refuse(f"field `{where}[{number}]` must be an object with a `name`")
        if not isinstance(call.get("arguments"), dict):
            row.refuse(f"field `{where}[{number}].arguments` must be an object")
    return tuple(ToolCall.of(call) for call in calls)


def _results(row: Row, where: str, content: Any, calls: int) -> tuple[str, ...]:
    if not isinstance(content, list) or len(content) != calls:
        found = f"{len(content)} entries" if isinstance(content, list) else type(content).__name__
        row.refuse(
            f"field `{where}` must be a list with one entry for each of the {calls} calls before it, not {found}"
        )
    return tuple(map(written, content))


def _function(row: Row, number: int, function: Any) -> dict[str, Any]:
    if (fault := declaration_fault(function)) is not None:
        row.refuse(f"field `functions[{number}]{fault[0]}` {fault[1]}")
    declared: dict[str, Any] = function
    return declared


def _names(row: Row, field: str) -> tuple[str, ...]:
    names = row.items(field)
    if not all(isinstance(name, str) for name in names):
        row.refuse(f"field `{field}` must be a list of names")
    return tuple(names)
