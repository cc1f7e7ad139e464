"""Where the rows of a data set come from: a local file, the hub, or the sample that comes with vcbench."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vcbench.config.paths import user_path
from vcbench.errors import TaskError
from vcbench.tasks.base import TaskOptions
from vcbench.tasks.hub import hub_file, hub_rows
from vcbench.tasks.rows import Row, read_rows

SAMPLES = Path(__file__).with_name("samples")
SAMPLE = "embedded sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(TaskOptions):
    """Options of every task that has a data set; none given means the embedded sample."""

    path: str = field(default="", metadata={"doc": "A local .json, .jsonl or .parquet file of rows."})
    dataset: str = field(default="", metadata={"doc": "A data set of the Hugging Face hub, as owner/name."})
    revision: str = field(default="", metadata={"doc": "Commit or tag of the data set on the hub."})

    def __post_init__(self) -> None:
        if self.path and self.dataset:
            raise ValueError("path and dataset are two sources; give one of them")
        if self.revision and not self.dataset:
            raise ValueError("revision says what to take from a dataset; give one")

    @property
    def source(self) -> str:
        """Which data it is, in words."""
        where = self.dataset + (f"@{self.revision}" if self.revision else "") if self.dataset else self.path
        return where or SAMPLE

    @property
    def origin(self) -> dict[str, Any]:
        """Which data it is, for a prompt's `meta`; the embedded samples are synthetic."""
        return {"source": self.source, "synthetic": self.source == SAMPLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions(SourceOptions):
    """The same for a data set that has splits on the hub."""

    split: str = field(default="test", metadata={"doc": "Which split of the data set on the hub."})
    file: str = field(default="", metadata={"doc": "Read this file of the data set on the hub, not a split."})

    def __post_init__(self) -> None:
        SourceOptions.__post_init__(self)
        if self.file and not self.dataset:
            raise ValueError("file says what to take from a dataset; give one")
        if not self.split:
            raise ValueError("split must name a split, such as test")


def source_rows(options: SplitOptions, sample: str, *, config: str | None = None) -> Iterator[Row]:
    """The rows that the options name, or those of the embedded `sample`.

    Raises TaskError if the source cannot be read, or has no rows.
    """
    if options.dataset and not options.file:
        revision = options.revision or None
        return _some(hub_rows(options.dataset, split=options.split, config=config, revision=revision), options)
    return file_rows(options, options.file, sample)


def file_rows(options: SourceOptions, file: str, sample: str) -> Iterator[Row]:
    """The rows of one `file` of the data set on the hub, of a local file, or of the embedded `sample`.

    Raises TaskError as `source_rows` does.
    """
    if options.dataset:
        return _some(read_rows(hub_file(options.dataset, file, revision=options.revision or None)), options)
    return _some(rows_of(options.path, sample), options)


def rows_of(path: str, sample: str) -> Iterator[Row]:
    """The rows of a local file, or of the embedded `sample` where the path is empty."""
    return read_rows(user_path(path) if path else SAMPLES / sample)


def _some(rows: Iterator[Row], options: SourceOptions) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        raise TaskError(f"{options.source} has no rows; check the file, or take another source")
    yield first
    yield from rows
