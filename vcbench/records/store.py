"""A run's directory: configuration and provenance first, one line per record as it comes, the manifest last.

Killed at any moment, what was written stays valid: a line counts once its newline is on disk, whatever follows the last
newline is cut away on reopening, and `manifest.json` exists only for a complete run.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vcbench.errors import RecordError
from vcbench.records.codec import LineKey, describe_key, encode, line_key, plain
from vcbench.records.files import (
    CONFIG,
    MANIFEST,
    PROVENANCE,
    REQUESTS,
    explained,
    json_bytes,
    read_json,
    replace_file,
    sync_directory,
    take_lock,
    write_all,
)
from vcbench.records.reader import manifest_problem, parse_lines, read_requests
from vcbench.records.schema import SCHEMA_VERSION, Line


class RunDirectory:
    """A run open for appending, locked against other writers until `close`. `dropped` says what was not usable."""

    def __init__(self, path: Path, lock: int) -> None:
        """Takes over a lock that is held already; use `create` or `open`."""
        self.path = path
        self.dropped: list[str] = []
        self.keys: set[LineKey] = set()
        self._lock = lock
        self._file: int | None = None

    @staticmethod
    def exists(path: Path | str) -> bool:
        """Whether a run was begun there: its configuration and provenance are both written."""
        with explained(Path(path), "read"):
            return (Path(path) / PROVENANCE).is_file()

    @classmethod
    def create(cls, path: Path | str, config_text: str, provenance: Mapping[str, Any]) -> Self:
        """A fresh run. Raises RecordError if one is there already, or another process is writing it."""
        path = Path(path)
        with explained(path, "create"):
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, take_lock(path))
            try:
                if cls.exists(path) or (path / REQUESTS).exists():
                    raise RecordError(f"{path} holds a run already; resume it, archive it or choose another name")
                replace_file(path / CONFIG, config_text.encode("utf-8", "backslashreplace"))
                replace_file(path / PROVENANCE, json_bytes(provenance))
                run._start(0)
            except BaseException:
                run.close()
                raise
        return run

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """An existing run, to be continued. Raises RecordError if there is none, it is damaged or being written."""
        path = Path(path)
        if not cls.exists(path):
            raise RecordError(f"no run in {path}: {PROVENANCE} is missing; `vcbench run` begins one")
        with explained(path, "open"):
            run = cls(path, take_lock(path))
            try:
                run._take_up()
            except BaseException:
                run.close()
                raise
        return run

    @property
    def config_text(self) -> str:
        """The resolved configuration that the run was begun with."""
        with explained(self.path, "read"):
            return (self.path / CONFIG).read_text("utf-8")

    @property
    def provenance(self) -> dict[str, Any]:
        """What `create` was given."""
        return read_json(self.path / PROVENANCE)

    @property
    def finished(self) -> bool:
        """Whether the manifest is there."""
        return (self.path / MANIFEST).exists()

    def lines(self) -> list[Line]:
        """All records, in the order written."""
        return parse_lines(read_requests(self.path), self.path / REQUESTS, [])

    def add_provenance(self, found: Mapping[str, Any]) -> None:
        """Adds what was found out after the run was begun. Raises RecordError where it was found otherwise before."""
        known = self.provenance
        for key, value in found.items():
            if key in known and known[key] != plain(value):
                raise RecordError(
                    f"{self.path / PROVENANCE}: the run was begun with {key} {known[key]}, and now it is {value}; the "
                    "two may answer differently, so choose another run name"
                )
        if found.keys() - known.keys():
            with explained(self.path, "write to"):
                replace_file(self.path / PROVENANCE, json_bytes({**known, **found}))

    def append(self, line: Line) -> None:
        """Writes one record and waits for the disk; on failure the file is as before.

        Raises RecordError on a second line with the same key, a value that cannot be recorded, or a failing disk.
        A finished run loses its manifest first, since it is no longer complete.
        """
        if self._file is None:
            raise RecordError(f"{self.path} is closed; open the run again to append")
        key = line_key(line)
        if key in self.keys:
            raise RecordError(f"{self.path / REQUESTS} has a line for {describe_key(key)} already; ids must be unique")
        data = encode(line)
        with explained(self.path, "write to"):
            (self.path / MANIFEST).unlink(missing_ok=True)
            end = os.fstat(self._file).st_size
            try:
                write_all(self._file, data)
                os.fsync(self._file)
            except BaseException:
                self._cut(end)
                raise
        self.keys.add(key)

    def take_over(self, lines: Sequence[Line]) -> None:
        """Appends lines that another run holds, all of them or none, with one wait for the disk."""
        if self._file is None:
            raise RecordError(f"{self.path} is closed; open the run again to append")
        keys = [line_key(line) for line in lines]
        if repeated := next((key for key, count in Counter([*self.keys, *keys]).items() if count > 1), None):
            raise RecordError(f"{self.path / REQUESTS} has a line for {describe_key(repeated)} already")
        data = b"".join(encode(line) for line in lines)
        with explained(self.path, "write to"):
            (self.path / MANIFEST).unlink(missing_ok=True)
            end = os.fstat(self._file).st_size
            try:
                write_all(self._file, data)
                os.fsync(self._file)
            except BaseException:
                self._cut(end)
                raise
        self.keys.update(keys)

    def revise(self, config_text: str, provenance: Mapping[str, Any]) -> None:
        """Another configuration and provenance for the same records; the run counts as unfinished until `finish`."""
        with explained(self.path, "write to"):
            (self.path / MANIFEST).unlink(missing_ok=True)
            replace_file(self.path / PROVENANCE, json_bytes(provenance))
            replace_file(self.path / CONFIG, config_text.encode("utf-8", "backslashreplace"))

    def finish(self) -> None:
        """Writes the manifest: from now on the run is complete."""
        data = read_requests(self.path)
        counts: dict[str, Counter[str]] = {}
        for line in parse_lines(data, self.path / REQUESTS, []):
            cell, _, _, kind = line_key(line)
            counts.setdefault(cell, Counter())[kind] += 1
        manifest = {
            "schema": SCHEMA_VERSION,
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "lines": sum(sum(kinds.values()) for kinds in counts.values()),
            "counts": counts,
        }
        with explained(self.path, "finish"):
            replace_file(self.path / MANIFEST, json_bytes(manifest))

    def close(self) -> None:
        """Releases the file and the lock; a second call does nothing."""
        for descriptor in (self._file, self._lock):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._file, self._lock = None, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _take_up(self) -> None:
        """Reads what is there, cuts a half-written line and withdraws a manifest that does not match."""
        data = read_requests(self.path)
        self.keys = {line_key(line) for line in parse_lines(data, self.path / REQUESTS, self.dropped)}
        if self.finished and (problem := manifest_problem(self.path, data)):
            self.dropped.append(f"{self.path / MANIFEST}: {problem}")
            (self.path / MANIFEST).unlink()
        self._start(data.rfind(b"\n") + 1)

    def _start(self, end: int) -> None:
        """Opens the records for appending at `end`, the end of their last whole line."""
        self._file = os.open(self.path / REQUESTS, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, end)
        os.fsync(self._file)
        sync_directory(self.path)

    def _cut(self, end: int) -> None:
        """Takes a partial line away; where even that fails the run is closed, and reopening it drops the line."""
        try:
            if self._file is not None:
                os.ftruncate(self._file, end)
        except OSError:
            self.close()


def archive(path: Path | str) -> Path:
    """Moves a run out of the way to `<name>~1`, `~2`, … and returns where; not while a process writes it."""
    path = Path(path)
    with explained(path, "archive"):
        lock = take_lock(path)
        try:
            number = 1
            while (target := path.with_name(f"{path.name}~{number}")).exists():
                number += 1
            path.rename(target)
            sync_directory(path.parent)
        finally:
            os.close(lock)
    return target
