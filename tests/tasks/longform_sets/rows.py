"""Rows for tests: the embedded samples, and rows made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vcbench.tasks.rows import Row, read_rows
from vcbench.tasks.source import SAMPLES


def sample(name: str) -> list[Row]:
    """The rows of an embedded sample."""
    return list(read_rows(SAMPLES / f"{name}.jsonl"))


def row(values: Mapping[str, Any]) -> Row:
    """A row that stands in line 3 of a file."""
    return Row("rows.jsonl, line 3", 3, json.dumps(values).encode(), values)
