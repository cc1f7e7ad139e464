"""When a call is the golden one: ComplexFuncBench's rules, as far as neither a live API nor a judge is needed.

A call that is equal by rule is right. One that differs in an argument of the table of exact arguments, or calls another
function, is wrong. In between only a live API or a judge could tell, so such a call is undecided.
Source: Zhong et al., "ComplexFuncBench", arXiv 2501.10132, section 4, and the published evaluation code's behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vcbench.tasks.cfb.assignment import best_pairs
from vcbench.tasks.cfb.conversations import ExactArguments
from vcbench.tasks.json_values import same
from vcbench.tasks.tool_calls.base import Signatures, ToolCall

ErrorType = Literal[
    "func_error", "param_missing", "value_error", "hallucination", "stop_early", "decode_error", "turn_limit"
]
SET_ARGUMENT = "categories_filter"
"""A list in one text, separated by commas, whose order does not matter."""
NAME_WEIGHT = 1000
"""More than any number of equal arguments."""


@dataclass(frozen=True, slots=True)
class FormatProblem:
    """A call that its function's declaration does not allow, and what the caller is told."""

    type: ErrorType
    message: str


def is_same(predicted: ToolCall, golden: ToolCall) -> bool:
    """Whether name, arguments and every value are equal, in any order of the arguments."""
    return (
        predicted.name == golden.name
        and predicted.arguments.keys() == golden.arguments.keys()
        and all(_equal(key, value, golden.arguments[key]) for key, value in predicted.arguments.items())
    )


def definite_error(predicted: ToolCall, golden: ToolCall, exact: ExactArguments) -> ErrorType | None:
    """What makes a differing call wrong for certain; None where it is undecided."""
    if predicted.name != golden.name:
        return "func_error"
    compared = exact.get(golden.name, ())
    for key, value in golden.arguments.items():
        if key in compared:
            if key not in predicted.arguments:
                return "param_missing"
            if not _equal(key, predicted.arguments[key], value):
                return "value_error"
    return None


def format_problem(call: ToolCall, signatures: Signatures) -> FormatProblem | None:
    """The first way in which a call breaks its function's declaration.

    As upstream, a boolean passes for a number, and integers and objects are not looked at.
    """
    signature = signatures.get(call.name)
    if signature is None:
        return FormatProblem("func_error", f"There is no function named {call.name}.")
    types = signature.types
    if missing := sorted(set(signature.required) - call.arguments.keys()):
        return FormatProblem("param_missing", f"{call.name} needs the parameters {', '.join(missing)} too.")
    if unknown := sorted(call.arguments.keys() - types.keys()):
        return FormatProblem("hallucination", f"{call.name} has no parameters {', '.join(unknown)}.")
    for key, value in call.arguments.items():
        kind = types[key]
        if not isinstance(value, _CLASSES.get(kind, object)):
            return FormatProblem("value_error", f"{key} of {call.name} must be a {kind}, not {type(value).__name__}.")
    return None


def align(predicted: Sequence[ToolCall], golden: Sequence[ToolCall]) -> list[tuple[int, int]]:
    """Which golden call each predicted one stands for: equal ones first, then by name and number of equal arguments.

    Upstream aligns the rest by embeddings of the calls' text, which needs a model; where names repeat the two may
    differ. Returns index pairs in the order of the predictions; the longer side keeps some without partner.
    """
    pairs: list[tuple[int, int]] = []
    left = list(range(len(golden)))
    others = []
    for i, call in enumerate(predicted):
        j = next((j for j in left if is_same(call, golden[j])), None)
        if j is None:
            others.append(i)
        else:
            pairs.append((i, j))
            left.remove(j)
    scores = [[_likeness(predicted[i], golden[j]) for j in left] for i in others]
    return sorted(pairs + [(others[a], left[b]) for a, b in best_pairs(scores)])


def _likeness(predicted: ToolCall, golden: ToolCall) -> int:
    shared = predicted.arguments.keys() & golden.arguments.keys()
    equal = sum(_equal(key, predicted.arguments[key], golden.arguments[key]) for key in shared)
    return NAME_WEIGHT * (predicted.name == golden.name) + equal


def _equal(key: str, a: Any, b: Any) -> bool:
    if key == SET_ARGUMENT and isinstance(a, str) and isinstance(b, str):
        return _parts(a) == _parts(b)
    return same(a, b)


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",")}


_CLASSES: dict[str, Any] = {"string": str, "number": int | float, "boolean": bool, "array": list}
