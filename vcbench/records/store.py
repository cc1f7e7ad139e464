"""A run's directory: configuration and provenance first, one line per record as it comes, the manifest last.

Killed at any moment, what was written stays valid: a line counts once its newline is on disk, whatever follows the last
newline is cut away on reopening, and `manifest.json` exists only for a complete run. Lines that are not what was
written are set aside on reopening, in `damaged.jsonl`, and a manifest is written only over lines that were verified.
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
    DAMAGED,
    MANIFEST,
    PROVENANCE,
    REQUESTS,
    explained,
    json_bytes,
    read_regular,
    replace_file,
    sync_directory,
    take_lock,
    write_all,
)
from vcbench.records.head import head_problem, manifest_of, manifest_problem, provenance_bytes, read_provenance
from vcbench.records.reader import Damage, Parsed, parse, read_requests
from vcbench.records.schema import CHECKED_SINCE, Line


class RunDirectory:
    """A run open for appending, locked against other writers until `close`. `dropped` says what was not usable."""

    def __init__(self, path: Path, lock: int) -> None:
        """Takes over a lock that is held already; use `create` or `open`."""
        self.path = path
        self.dropped: list[str] = []
        self.keys: set[LineKey] = set()
        self._vouched = hashlib.sha256(b"").hexdigest(), 0
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
                config = config_text.encode("utf-8", "backslashreplace")
                replace_file(path / CONFIG, config)
                replace_file(path / PROVENANCE, provenance_bytes(provenance, config))
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
        """What `create` was given, with the schema version and the hashes that it added."""
        return read_provenance(self.path)

    @property
    def finished(self) -> bool:
        """Whether the manifest is there."""
        return (self.path / MANIFEST).exists()

    def lines(self) -> list[Line]:
        """All records, in the order written. Raises RecordError where one was damaged since the run was opened."""
        parsed = parse(read_requests(self.path), self.path / REQUESTS)
        parsed.refuse_damage()
        return parsed.lines

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
                (self.path / MANIFEST).unlink(missing_ok=True)
                config = read_regular(self.path / CONFIG)
                replace_file(self.path / PROVENANCE, provenance_bytes({**known, **found}, config))

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
            config = config_text.encode("utf-8", "backslashreplace")
            replace_file(self.path / PROVENANCE, provenance_bytes(provenance, config))
            replace_file(self.path / CONFIG, config)

    def finish(self) -> None:
        """Writes the manifest: from now on the run is complete.

        Raises RecordError where a line cannot be verified, or is not one of those read and written here.
        """
        data = read_requests(self.path)
        parsed = parse(data, self.path / REQUESTS)
        parsed.refuse_damage()
        self._refuse_unverified(parsed, data)
        counts: dict[str, Counter[str]] = {}
        for line in parsed.lines:
            cell, _, _, kind = line_key(line)
            counts.setdefault(cell, Counter())[kind] += 1
        with explained(self.path, "finish"):
            replace_file(self.path / MANIFEST, json_bytes(manifest_of(self.path, data, counts)))

    def _refuse_unverified(self, parsed: Parsed, data: bytes) -> None:
        sha256, size = self._vouched
        old = any(line.schema < CHECKED_SINCE for line in parsed.lines)
        changed = old and hashlib.sha256(data[:size]).hexdigest() != sha256
        if changed or set(map(line_key, parsed.lines)) != self.keys:
            raise RecordError(
                f"{self.path / REQUESTS} was changed by something else; the same `vcbench run` goes on from it"
            )

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
        """Reads what is there, cuts a half line, sets damaged ones aside, withdraws a manifest that does not vouch."""
        if problem := head_problem(self.path, self.provenance):
            raise RecordError(problem)
        data = read_requests(self.path)
        parsed = parse(data, self.path / REQUESTS)
        if parsed.half:
            self.dropped.append(parsed.half)
        problem = manifest_problem(self.path, data) if self.finished else "no manifest"
        if problem and self.finished:
            self.dropped.append(f"{self.path / MANIFEST}: {problem}")
            (self.path / MANIFEST).unlink()
        if problem:
            _distrust_unchecked(parsed)
        else:
            self._vouched = hashlib.sha256(data).hexdigest(), len(data)
        self.keys = {line_key(line) for line in parsed.lines}
        end = data.rfind(b"\n") + 1
        if parsed.damaged:
            self.dropped += [f"{note}; kept in {DAMAGED}, to be computed again" for note in parsed.notes()]
            self._set_aside(parsed)
            end = sum(len(text) + 1 for text in parsed.intact)
        self._start(end)

    def _set_aside(self, parsed: Parsed) -> None:
        """Moves damaged lines to a file of their own, there first, so that none is ever lost."""
        aside = os.open(self.path / DAMAGED, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            write_all(aside, b"".join(damage.text + b"\n" for damage in parsed.damaged))
            os.fsync(aside)
        finally:
            os.close(aside)
        replace_file(self.path / REQUESTS, b"".join(text + b"\n" for text in parsed.intact))

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


def _distrust_unchecked(parsed: Parsed) -> None:
    """Counts lines of a schema without checksums as damaged, where no manifest vouches for them."""
    kept = list(zip(parsed.lines, parsed.intact, strict=True))
    parsed.damaged += [
        Damage(0, text, f"{parsed.where}: no manifest vouches for a line of schema {line.schema}, without a checksum")
        for line, text in kept
        if line.schema < CHECKED_SINCE
    ]
    kept = [(line, text) for line, text in kept if line.schema >= CHECKED_SINCE]
    parsed.lines, parsed.intact = [line for line, _ in kept], [text for _, text in kept]


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
