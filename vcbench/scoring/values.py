"""What a metric said of one answer: a value, that it does not apply, or why it failed; in memory and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vcbench.tasks.base import Metric, Ratio, Value

Pair = tuple[float, float]
"""Numerator and denominator: a metric's value over some answers is the sum of the first over that of the second."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The metric raised, or gave something that is no value of its kind; the answer itself is kept."""

    message: str


Outcome = Value | Failure


def checked(metric: Metric, value: Any) -> Outcome:
    """The value as its kind has it, numpy's numbers as Python's; a Failure that says what is wrong with it."""
    if value is None:
        return None
    if hasattr(value, "item") and not isinstance(value, Ratio):
        value = value.item()
    match metric.kind, value:
        case "share", bool():
            return value
        case "mean", bool() | int() | float() if math.isfinite(value):
            return float(value)
        case "ratio", Ratio(top, bottom) if math.isfinite(top) and math.isfinite(bottom) and bottom >= 0:
            return Ratio(float(top), float(bottom))
    wanted = {"share": "True or False", "mean": "a finite number", "ratio": "a Ratio of finite numbers"}[metric.kind]
    return Failure(f"gave {value!r}, where a {metric.kind} is {wanted}")


def pair(value: bool | float | Ratio) -> Pair:
    """The value as numerator and denominator."""
    return (value.numerator, value.denominator) if isinstance(value, Ratio) else (float(value), 1.0)


def samples(
    metric: Metric, outcomes: Mapping[str, Outcome], groups: Mapping[str, str], asked: Sequence[str]
) -> dict[str, Pair]:
    """The metric by independent group of requests, such as the turns of a conversation; by request where there is none.

    A metric of answers is summed over its group. A share of groups is true where all its answers are, without those it
    does not apply to; a group with a failed or missing answer has no value.
    """
    if metric.of == "group":
        return _whole_groups(outcomes, groups, asked)
    found: dict[str, Pair] = {}
    for request, value in outcomes.items():
        if value is None or isinstance(value, Failure):
            continue
        name = groups.get(request, request)
        top, bottom = pair(value)
        before = found.get(name, (0.0, 0.0))
        found[name] = (before[0] + top, before[1] + bottom)
    return found


def _whole_groups(outcomes: Mapping[str, Outcome], groups: Mapping[str, str], asked: Sequence[str]) -> dict[str, Pair]:
    members: dict[str, list[Outcome]] = {}
    for request in asked:
        missing = Failure("no answer")
        members.setdefault(groups.get(request, request), []).append(outcomes.get(request, missing))
    found: dict[str, Pair] = {}
    for name, values in members.items():
        known = [value for value in values if value is not None]
        if known and not any(isinstance(value, Failure) for value in known):
            found[name] = (float(all(known)), 1.0)
    return found


def to_json(outcome: Outcome) -> Any:
    """As `scores.json` holds it."""
    match outcome:
        case Failure(message):
            return {"error": message}
        case Ratio(top, bottom):
            return [top, bottom]
    return outcome


def from_json(value: Any) -> Outcome:
    """What `to_json` was given."""
    match value:
        case {"error": str(message)}:
            return Failure(message)
        case [top, bottom]:
            return Ratio(top, bottom)
        case None | bool() | float():
            return value
        case int():
            return float(value)
    raise ValueError(f"no outcome of a metric: {value!r}")
