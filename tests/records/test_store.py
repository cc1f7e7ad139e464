"""A run's directory survives being killed anywhere, a full disk, two writers and repeated ids."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vcbench.errors import RecordError, SchemaVersionError
from vcbench.records import files, store
from vcbench.records.codec import encode
from vcbench.records.head import provenance_bytes
from vcbench.records.reader import load_run
from vcbench.records.schema import Line, PromptLine, RequestLine
from vcbench.records.store import RunDirectory, archive

Damage = Callable[[bytes], bytes]
CELLS = [{"id": "c1", "label": "full", "arm": "full", "task": "t"}]


def request(name: str, text: str = "text") -> RequestLine:
    return RequestLine(
        cell="c1", task="t", request=name, prompt_sha256="0", token_ids=[1, 2], text=text, finish_reason="length"
    )


def prompt(name: str) -> PromptLine:
    return PromptLine(task="t", request=name, prompt_ids=[1], prompt_sha256="0", document_sha256="0")


def begin(path: Path, *lines: Line) -> Path:
    with RunDirectory.create(path, "name: x\n", {"cells": CELLS}) as run:
        for line in lines:
            run.append(line)
    return path


def test_a_run_from_begin_to_end(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one"
    assert not RunDirectory.exists(path)
    with RunDirectory.create(path, "name: one\n", {"cells": CELLS}) as run:
        run.append(prompt("a"))
        run.append(request("a"))
        assert not run.finished
        assert not load_run(path).complete
        run.finish()
        assert run.finished
    assert sorted(entry.name for entry in path.iterdir()) == [
        ".lock",
        "config.yaml",
        "manifest.json",
        "provenance.json",
        "requests.jsonl",
    ]
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["counts"] == {"": {"prompt": 1}, "c1": {"request": 1}}
    with RunDirectory.open(path) as run:
        assert run.config_text == "name: one\n"
        assert run.provenance["cells"] == CELLS
        assert run.lines() == [prompt("a"), request("a")]
        assert run.dropped == []
        assert run.finished
    loaded = load_run(path)
    assert loaded.complete
    assert loaded.config == {"name": "one"}
    assert loaded.requests["c1", "t", "a"] == request("a")


def test_killed_at_every_byte_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = begin(tmp_path / "run", prompt("a"), prompt("b"), request("a", "é\n\ud83d"), request("b"))
    records = path / "requests.jsonl"
    data = records.read_bytes()
    for size in range(len(data) + 1):
        records.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        half = not data[:size].endswith(b"\n") and size > 0
        assert bool(load_run(path).dropped) == half
        with RunDirectory.open(path) as run:
            assert len(run.lines()) == whole
            assert bool(run.dropped) == half
            if half:
                assert f"line {whole + 1}: half written" in run.dropped[0]
            run.append(request("z"))
            assert records.read_bytes() == data[: data.rfind(b"\n", 0, size) + 1] + encode(request("z"))


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(st.characters(), max_size=30), max_size=5), cut=st.integers(0, 5000))
def test_reopening_keeps_exactly_the_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], cut: int
) -> None:
    lines = [request(str(index), text) for index, text in enumerate(texts)]
    path = begin(tmp_path_factory.mktemp("runs") / "run", *lines)
    records = path / "requests.jsonl"
    records.write_bytes(records.read_bytes()[:cut])
    with RunDirectory.open(path) as run:
        kept = run.lines()
        assert b"".join(map(encode, kept)) == records.read_bytes()
        for line in lines[len(kept) :]:
            run.append(line)
        assert records.read_bytes() == b"".join(map(encode, lines))


def test_kill_minus_nine_while_writing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    program = (
        "import sys; from tests.records.test_store import begin, request, RunDirectory\n"
        f"begin(__import__('pathlib').Path({str(path)!r}))\n"
        f"run = RunDirectory.open({str(path)!r})\n"
        "for number in range(10**6): run.append(request(str(number))); print(number, flush=True)"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(5)][-1]
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    process.stdout.close()
    process.wait()
    last = int(rest[-1]) if rest else int(told)
    with RunDirectory.open(path) as run:
        assert last + 1 <= len(run.lines()) <= last + 2


def test_killed_before_the_head_was_complete(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("half")
    (path / "provenance.json.partial").write_text("{")
    assert not RunDirectory.exists(path)
    with pytest.raises(RecordError, match=r"provenance.json is missing"):
        RunDirectory.open(path)
    begin(path)
    assert load_run(path).config == {"name": "x"}
    (path / "requests.jsonl").unlink()
    with RunDirectory.open(path) as run:
        run.append(request("a"))
        assert run.lines() == [request("a")]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", request("a"), request("b"), request("c"))
    records = path / "requests.jsonl"
    rows = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(rows[0] + rows[1][:20] + b"\n" + rows[2])
    with pytest.raises(RecordError, match=r"requests.jsonl, line 2: not a line of JSON.*same `vcbench run`"):
        load_run(path)
    records.write_bytes(b"".join(rows))
    RunDirectory.open(path).close()
    assert not (path / "damaged.jsonl").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: row.replace(b'"text":"text"', b'"text":"tent"'),
        lambda row: row.replace(b"[1,2]", b"[1,3]"),
        lambda row: row.replace(b'"length"', b'"stop"'),
        lambda row: row.replace(b',"timing":{}', b',"timing":{"decode_s":1e-9}'),
        lambda row: row[: row.rindex(b',"check"')] + b"}\n",
        lambda row: row[:50] + b"\n",
        lambda row: b"\x00\xff\n",
        lambda row: b"\n",
        lambda row: row + row,
        lambda row: row + encode(request("b", "another")),
    ],
)
def test_damaged_lines_are_named_set_aside_and_never_vouched_for(tmp_path: Path, damage: Damage) -> None:
    path = begin(tmp_path / "run", prompt("a"), prompt("b"), request("a"), request("b"))
    with RunDirectory.open(path) as run:
        run.finish()
    records = path / "requests.jsonl"
    rows = records.read_bytes().splitlines(keepends=True)
    wrong = damage(rows[3])
    assert wrong != rows[3]
    records.write_bytes(b"".join(rows[:3]) + wrong)
    with pytest.raises(RecordError, match=r"lines? 4.*damaged.jsonl, and computes them again"):
        load_run(path)
    with RunDirectory.open(path) as run:
        assert not run.finished
        assert all("requests.jsonl, line" in note and "kept in damaged.jsonl" in note for note in run.dropped[1:])
        assert "requests.jsonl is not what it was" in run.dropped[0]
        assert run.lines() == [prompt("a"), prompt("b"), request("a")]
        assert (path / "damaged.jsonl").read_bytes() == wrong
        run.append(request("b"))
        run.finish()
    assert load_run(path).complete
    assert records.read_bytes() == b"".join(rows)


def test_lines_damaged_while_a_run_is_open_are_never_vouched_for(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", prompt("a"), prompt("b"), request("a"), request("b"))
    records = path / "requests.jsonl"
    whole = records.read_bytes()
    for changed, says in [
        (whole.replace(b'"text":"text"', b'"text":"tent"', 1), "line 3: .*checksum"),
        (b"".join(whole.splitlines(keepends=True)[:3]), "changed by something else"),
        (whole + encode(request("c")), "changed by something else"),
    ]:
        with RunDirectory.open(path) as run:
            records.write_bytes(changed)
            with pytest.raises(RecordError, match=says):
                run.finish()
            assert not run.finished
        records.write_bytes(whole)


def test_old_lines_without_checksums_count_only_where_a_manifest_vouches(tmp_path: Path) -> None:
    """Records of schema 2 stay readable; taken up without their manifest they are set aside: nothing holds them."""
    path = begin(tmp_path / "run")
    old = b"".join(encode(replace(line, schema=2)) for line in (prompt("a"), request("a")))
    (path / "requests.jsonl").write_bytes(old)
    (path / "provenance.json").write_text(json.dumps({"schema": 2, "cells": CELLS}))
    manifest = {"schema": 2, "sha256": hashlib.sha256(old).hexdigest(), "bytes": len(old), "lines": 2, "counts": {}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert load_run(path).complete
    with RunDirectory.open(path) as run:
        assert run.dropped == []
        run.append(prompt("b"))
        run.append(request("b"))
        run.finish()
    (path / "manifest.json").unlink()
    assert len(load_run(path).requests) == 2
    with RunDirectory.open(path) as run:
        assert {line.request for line in run.lines()} == {"b"}
        assert (path / "damaged.jsonl").read_bytes() == old


@pytest.mark.parametrize("name", ["provenance.json", "manifest.json"])
@pytest.mark.parametrize("schema", [99, 0, None, True, "3", 3.0])
def test_heads_of_another_schema_are_refused(tmp_path: Path, name: str, schema: object) -> None:
    path = begin(tmp_path / "run", prompt("a"), request("a"))
    with RunDirectory.open(path) as run:
        run.finish()
    head = json.loads((path / name).read_text()) | {"schema": schema}
    (path / name).write_text(json.dumps(head))
    with pytest.raises(SchemaVersionError, match=rf"{name}: schema version .*, this vcbench reads 1, 2 and 3"):
        load_run(path)


def test_the_manifest_vouches_for_all_that_the_gate_reads(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", prompt("a"), request("a"))
    with RunDirectory.open(path) as run:
        run.finish()
    files = {name: (path / name).read_bytes() for name in ("config.yaml", "provenance.json", "manifest.json")}
    for name, changed, says in [
        (
            "provenance.json",
            files["provenance.json"].replace(b'"full"', b'"lossy"'),
            "provenance.json is not as it was",
        ),
        ("config.yaml", files["config.yaml"] + b"engine: {exactness: fast}\n", "config.yaml is not the configuration"),
        ("config.yaml", files["config.yaml"].replace(b"x", b"y"), "config.yaml is not the configuration"),
    ]:
        (path / name).write_bytes(changed)
        assert not load_run(path).complete
        assert says in load_run(path).dropped[-1]
        with pytest.raises(RecordError, match=says):
            RunDirectory.open(path)
        (path / name).write_bytes(files[name])
    # Both rewritten together, as a forger would: the manifest still knows the files that it was written over.
    config = b"name: forged\n"
    (path / "config.yaml").write_bytes(config)
    (path / "provenance.json").write_bytes(provenance_bytes({"cells": CELLS}, config))
    forged = load_run(path)
    assert not forged.complete
    assert "config.yaml is not what it was when the run ended" in forged.dropped[-1]
    for keep in ({}, {"files": {}}, {"schema": 2}):
        manifest = json.loads(files["manifest.json"])
        (path / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if k != "files"} | keep))
        assert not load_run(path).complete


def test_files_of_another_kind_are_named_and_never_waited_for(tmp_path: Path) -> None:
    for name in ("config.yaml", "provenance.json", "requests.jsonl"):
        for number, make in enumerate((os.mkdir, os.mkfifo, lambda place: place.symlink_to("/dev/zero"))):
            path = begin(tmp_path / f"{name}-{number}", prompt("a"), request("a"))
            (path / name).unlink()
            make(path / name)
            with pytest.raises(RecordError, match=name):
                load_run(path)


@pytest.mark.parametrize(
    "config",
    [
        b"a: " + b"[" * 5000 + b"]" * 5000,
        b"".join(b"  " * n + b"a:\n" for n in range(400)),
        b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + b"".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n".encode() for n in range(1, 30)),
        b"a: &a [*a]",
        b"a: &a {b: *a}",
        b"\xff\xfe\x00",
        b"a: \x00",
        b"x: 2026-13-45",
        b"? [a]\n: b",
        b"engine: fast",
        b"tasks: 5",
        b"tasks: [5]",
        b"tasks: [{name: [x]}]",
        b"",
    ],
)
def test_a_configuration_that_no_reader_can_hold_is_refused(tmp_path: Path, config: bytes) -> None:
    path = begin(tmp_path / "run", prompt("a"), request("a"))
    (path / "config.yaml").write_bytes(config)
    (path / "provenance.json").write_bytes(provenance_bytes({"cells": CELLS}, config))
    with pytest.raises(RecordError, match=r"config.yaml"):
        load_run(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "tiny"},
        {"model": {"id": 5}},
        {"model": {"stop_ids": [[2]]}},
        {"model": {"vocab_size": True}},
        {"started": 5},
        {"hardware": []},
        {"cells": {"a": 1}},
        {"cells": [CELLS[0] | {"method": ["x"]}]},
        {"cells": [CELLS[0] | {"compressor": {}}]},
        {"cells": [CELLS[0] | {"draft_length": "4"}]},
        {"cells": [CELLS[0] | {"full_cache": None}]},
        {"cells": [CELLS[0] | {"task": 5}]},
        {"cells": [CELLS[0] | {"levels": 5}]},
        {"cells": [CELLS[0] | {"levels": ["x"]}]},
        {"cells": [CELLS[0] | {"arm": "other"}]},
        {"cells": ["x"]},
    ],
)
def test_odd_values_in_provenance_are_named(tmp_path: Path, changes: dict[str, object]) -> None:
    path = begin(tmp_path / "run", prompt("a"), request("a"))
    config = (path / "config.yaml").read_bytes()
    (path / "provenance.json").write_bytes(provenance_bytes({"cells": CELLS} | changes, config))
    with pytest.raises(RecordError, match=r"provenance.json"):
        load_run(path)


def test_duplicates_name_both_lines(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", request("a"), request("b"))
    with RunDirectory.open(path) as run, pytest.raises(RecordError, match="request 'a' already"):
        run.append(request("a", "another"))
    records = path / "requests.jsonl"
    records.write_bytes(records.read_bytes() + encode(request("a")))
    with pytest.raises(RecordError, match=r"lines 1 and 3: both are for .*request 'a'"):
        load_run(path)
    with RunDirectory.open(path) as run:
        assert run.lines() == [request("b")]


def test_another_schema_version_is_named(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", request("a"))
    records = path / "requests.jsonl"
    records.write_bytes(records.read_bytes().replace(b'"schema":3', b'"schema":7'))
    with pytest.raises(RecordError, match=r"line 1: schema version 7, this vcbench reads 1, 2 and 3"):
        load_run(path)


def test_two_writers(tmp_path: Path) -> None:
    path = begin(tmp_path / "run")
    with RunDirectory.open(path):
        for other in (lambda: RunDirectory.open(path), lambda: begin(path), lambda: archive(path)):
            with pytest.raises(RecordError, match=rf"written by another vcbench \(process {os.getpid()}\)"):
                other()
    RunDirectory.open(path).close()


def test_create_refuses_an_existing_run(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", request("a"))
    with pytest.raises(RecordError, match="holds a run already"):
        begin(path)
    assert archive(path) == tmp_path / "run~1"
    begin(path)
    assert archive(path) == tmp_path / "run~2"
    assert (tmp_path / "run~1" / "requests.jsonl").read_bytes() == encode(request("a"))
    assert not RunDirectory.exists(path)
    with pytest.raises(RecordError, match="there is no such run"):
        archive(path)


def test_appending_to_a_finished_run_withdraws_the_manifest(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", prompt("a"), request("a"))
    with RunDirectory.open(path) as run:
        run.finish()
        run.append(prompt("b"))
        assert not run.finished
        run.finish()
        run.finish()
    assert load_run(path).complete


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-30], lambda data: data.replace(b"text", b"test")]
)
def test_records_that_the_manifest_does_not_vouch_for(tmp_path: Path, damage: object) -> None:
    path = begin(tmp_path / "run", prompt("a"), prompt("b"), request("a"), request("b", "one text"))
    with RunDirectory.open(path) as run:
        run.finish()
    records = path / "requests.jsonl"
    records.write_bytes(damage(records.read_bytes().replace(b'"text":"one', b'"text":"two')))  # type: ignore[operator]
    try:
        loaded = load_run(path)
    except RecordError:
        return
    assert not loaded.complete
    assert "is not what it was when the run ended" in loaded.dropped[-1]
    with RunDirectory.open(path) as run:
        assert not run.finished
        assert "is not what it was" in run.dropped[-1]


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission denied")],
)
def test_a_failing_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str) -> None:
    path = begin(tmp_path / "run", request("a"))
    before = (path / "requests.jsonl").read_bytes()
    real = os.write

    def partial(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data[:50])

    with RunDirectory.open(path) as run:
        monkeypatch.setattr(files.os, "write", partial)
        with pytest.raises(RecordError, match=rf"{says}.*all earlier records are kept"):
            run.append(request("b"))
        monkeypatch.undo()
        assert (path / "requests.jsonl").read_bytes() == before
        run.append(request("b"))
        assert run.lines() == [request("a"), request("b")]


def test_where_even_truncation_fails_the_run_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = begin(tmp_path / "run", request("a"))

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    run = RunDirectory.open(path)
    monkeypatch.setattr(store.os, "fsync", fail)
    monkeypatch.setattr(store.os, "ftruncate", fail)
    with pytest.raises(RecordError, match="broken"):
        run.append(request("b"))
    with pytest.raises(RecordError, match="is closed"):
        run.append(request("c"))
    monkeypatch.undo()
    with RunDirectory.open(path) as again:
        again.append(request("c"))


def test_a_real_size_limit_of_the_system(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", request("a"))
    before = (path / "requests.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunDirectory.open(path) as run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
        try:
            with pytest.raises(RecordError, match="exceed the allowed size"):
                run.append(request("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (path / "requests.jsonl").read_bytes() == before


def test_unusable_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"cannot create .*a file"):
        begin(tmp_path / "file")
    with pytest.raises(RecordError, match=r"cannot create .*a part of the path is a file"):
        begin(tmp_path / "file" / "run")
    with pytest.raises(RecordError, match=r"cannot create .*no directory can be made there; choose another"):
        begin(Path("/proc/nowhere/run"))
    with pytest.raises(RecordError, match="name is too long"):
        begin(tmp_path / ("x" * 300))
    with pytest.raises(RecordError, match="no such directory"):
        load_run(tmp_path / "none")


def test_damaged_heads_are_named(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", request("a"))
    for name, content, says in [
        ("config.yaml", "a: [", "config.yaml cannot be read"),
        ("config.yaml", "- a", "must hold a mapping"),
        ("provenance.json", "{", "provenance.json cannot be read"),
        ("provenance.json", "[]", "must hold a JSON object"),
        ("provenance.json", '{"schema": 2}', "`cells` must list"),
        ("provenance.json", '{"schema": 2, "cells": [{"id": "c1"}]}', r"cells\[0\] needs an id, a label and an arm"),
        ("provenance.json", json.dumps({"schema": 2, "cells": CELLS * 2}), "two cells have the same id"),
        ("provenance.json", '{"schema": 2, "cells": []}', "cell 'c1' is not among the cells"),
    ]:
        good = (path / name).read_text()
        (path / name).write_text(content)
        with pytest.raises(RecordError, match=says):
            load_run(path)
        (path / name).write_text(good)
    (path / "requests.jsonl").write_bytes(encode(request("a")))
    with pytest.raises(RecordError, match="task 't', request 'a' has no prompt line"):
        load_run(path)
    (path / "config.yaml").unlink()
    with pytest.raises(RecordError, match=r"config.yaml is missing"):
        load_run(path)


def test_what_is_added_to_provenance_is_vouched_for_too(tmp_path: Path) -> None:
    path = begin(tmp_path / "run", prompt("a"), request("a"))
    with RunDirectory.open(path) as run:
        run.finish()
        run.add_provenance({"opened": {"gpu": "none"}})
        assert not load_run(path).complete
        run.finish()
    loaded = load_run(path)
    assert loaded.complete
    assert loaded.dropped == []
    assert loaded.provenance["opened"] == {"gpu": "none"}
    with RunDirectory.open(path) as run:
        run.revise("name: y\n", loaded.provenance)
        run.finish()
    assert load_run(path).complete
