"""What every data set of `longform` gives: the text to ask, and what scoring needs later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vcbench.tasks.base import Metric, Value
from vcbench.tasks.rows import Row

SAME_AS_FULL = Metric(name="same_as_full", summary="the same result as full KV, where that has one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row, ready to ask. `target` is all that scoring gets beside the answer, so it must be plain JSON data."""

    content: str
    target: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)


class DataSet(Protocol):
    """One of the data sets."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What `score` gives."""

    def item(self, row: Row) -> Item:
        """What the row asks. Raises TaskError, with the row's place and the field, on a malformed one."""

    def score(self, target: Mapping[str, Any], answer: str, reference: str | None) -> Mapping[str, Value]:
        """The value of each of `metrics`."""
