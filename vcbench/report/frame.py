"""Figures as one flat table for other programs: CSV and Parquet, by pandas."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vcbench.errors import UsageError
from vcbench.records.output import write_output
from vcbench.records.printable import spreadsheet_text

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """One row each, with a type for every column that does not depend on which values are missing."""
    import pandas as pd

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        columns[name] = pd.Series(values, dtype=_dtype(values))
    return pd.DataFrame(columns)


def csv_text(rows: Sequence[Row]) -> str:
    """The rows as CSV with a header line; nothing of nothing. No text in it is a formula or moves anything."""
    rows = [{spreadsheet_text(key): _shown(value) for key, value in row.items()} for row in rows]
    return str(frame(rows).to_csv(index=False, lineterminator="\n")) if rows else ""


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Writes the rows as Parquet, whole. Raises UsageError where pyarrow is missing or the place cannot be written."""
    if find_spec("pyarrow") is None:
        raise UsageError("--parquet needs pyarrow: pip install 'vcbench[tasks]'")
    buffer = io.BytesIO()
    frame(rows).to_parquet(buffer, engine="pyarrow", index=False)
    write_output(path, buffer.getvalue())


def _shown(value: Any) -> Any:
    return spreadsheet_text(value) if isinstance(value, str) else value


def _dtype(values: Sequence[Any]) -> str:
    """Numbers without any value count as fractions."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and kinds:
        return "Int64"
    if kinds <= {bool} and kinds:
        return "boolean"
    return "Float64" if kinds <= {int, float} else "string"
