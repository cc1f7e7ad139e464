"""Ranges of numbers, written in a field's metadata: `minimum` and `maximum` are allowed, `above` is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any


def limits(spec: Field[Any]) -> list[str]:
    """The field's limits in words; none if every number will do."""
    words = (("above", "above"), ("minimum", "at least"), ("maximum", "at most"))
    return [f"{word} {spec.metadata[key]}" for key, word in words if spec.metadata.get(key) is not None]


def within(value: Any, spec: Field[Any]) -> bool:
    """Whether a number, or each number of a mapping, keeps to the field's limits; other values always do."""
    if isinstance(value, Mapping):
        return all(within(item, spec) for item in value.values())
    if not isinstance(value, (int, float)):
        return True
    minimum, maximum, above = (spec.metadata.get(key) for key in ("minimum", "maximum", "above"))
    return (
        (minimum is None or value >= minimum)
        and (maximum is None or value <= maximum)
        and (above is None or value > above)
    )
