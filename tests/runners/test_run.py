"""Runs on the tiny model: resumed after any death, never mixed, never poisoned, one cell the same as in any company."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from vcbench.cli.main import app
from vcbench.config.load import dump_config
from vcbench.config.options import build_options
from vcbench.config.sampling import Sampling
from vcbench.config.schema import CellConfig, EngineConfig, MethodConfig, MetricsConfig, RunConfig, TaskConfig
from vcbench.engine.decoding.stopping import check_request
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Request
from vcbench.errors import ConfigError, ModelError, RecordError, RequestError
from vcbench.forensics.tiny import tiny_config
from vcbench.lossless.check import check_loaded, check_run, unreadable
from vcbench.lossless.outcome import CheckResult
from vcbench.metrics.summary import summarise
from vcbench.records.reader import load_run
from vcbench.runners.run import execute

MAX_TOKENS = 24
CELLS = (
    CellConfig(arm="full"),
    CellConfig(arm="lossy", method="snapkv-2x"),
    CellConfig(arm="vericache", method="snapkv-2x", draft_length=4),
    CellConfig(arm="vericache", method="kivi-2bit", draft_length=9),
)
LONG_CONSOLE = 1000


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    made = tiny_config("tiny", requests=5, batch_size=2, cells=CELLS)
    task = replace(made.tasks[0], max_tokens=MAX_TOKENS)
    return replace(made, output_dir=str(tmp_path / "runs"), tasks=(task,), metrics=MetricsConfig(divergence=True))


def gate(path: Path) -> CheckResult:
    """What `vcbench check` makes of a run."""
    try:
        return check_loaded(load_run(path))
    except RecordError as error:
        return unreadable(path, error)


def quiet() -> Console:
    return Console(quiet=True)


def heard() -> Console:
    return Console(record=True, width=LONG_CONSOLE, file=io.StringIO())


def timeless(path: Path) -> list[dict[str, Any]]:
    """The run's lines but for their times and for how requests were batched."""
    lines = [json.loads(line) for line in (path / "requests.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("timing", "check")} for line in lines if line["kind"] != "batch"
    ]


def answers(path: Path) -> dict[tuple[str, str], tuple[list[int], str, str]]:
    """(cell label, request) to ids, finish reason and hash of logits."""
    run = load_run(path)
    labels = {cell.id: cell.label for cell in run.cells}
    return {
        (labels[cell], request): (list(line.token_ids), line.finish_reason, line.logits_sha256)
        for (cell, _, request), line in run.requests.items()
    }


def test_a_run_is_complete_and_every_verified_answer_is_full_kvs(config: RunConfig) -> None:
    path = execute(config, console=quiet())
    run = load_run(path)
    found = answers(path)

    assert run.complete
    assert len(found) == 5 * len(CELLS)
    for (label, request), answer in found.items():
        if label.startswith("vericache"):
            assert answer == found["full", request]
    assert {line.request for line in run.divergences.values()} == {f"r{n:03}" for n in range(5)}


def test_the_same_run_again_gives_the_same_lines_bit_for_bit(config: RunConfig) -> None:
    first = execute(config, console=quiet())
    second = execute(replace(config, name="again"), console=quiet())

    assert timeless(first) == timeless(second)


def test_answers_do_not_depend_on_batch_size_draft_length_or_the_cells_beside(config: RunConfig) -> None:
    together = answers(execute(config, console=quiet()))
    alone = replace(
        config,
        name="alone",
        engine=EngineConfig(batch_size=1),
        cells=(CellConfig(arm="full"), CellConfig(arm="vericache", method="snapkv-2x", draft_length=1)),
    )
    apart = answers(execute(alone, console=quiet()))

    for (label, request), answer in apart.items():
        if label == "full":
            assert answer == together["full", request]
        else:
            assert answer == together["full", request] == together["vericache snapkv-2x k=4", request]


def test_a_finished_run_is_left_alone(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = execute(config, console=quiet())
    before = (path / "requests.jsonl").read_bytes()
    monkeypatch.setattr(Decoder, "forward", None)
    console = heard()
    assert execute(config, console=console) == path

    assert (path / "requests.jsonl").read_bytes() == before
    assert "is complete; nothing to run" in console.export_text()


@pytest.mark.parametrize("kept", [1, 2, 5, 9, 17])
def test_a_run_cut_anywhere_resumes_to_the_same_lines(config: RunConfig, kept: int) -> None:
    whole = execute(config, console=quiet())
    expected = timeless(whole)
    lines = (whole / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (whole / "manifest.json").unlink()
    (whole / "requests.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:20])
    console = heard()
    execute(config, console=console)

    assert "dropped:" in console.export_text()
    assert sorted(map(json.dumps, timeless(whole))) == sorted(map(json.dumps, expected))
    assert load_run(whole).complete


@pytest.mark.parametrize("kind", ["prompt", "request", "divergence", "batch"])
def test_damaged_lines_are_set_aside_and_computed_again(config: RunConfig, kind: str) -> None:
    """The advice that `check` gives works, and never blesses what was damaged."""
    path = execute(config, console=quiet())
    expected = sorted(map(json.dumps, timeless(path)))
    records = path / "requests.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == kind)
    digit = {"prompt": b'"prompt_ids":[', "request": b'"token_ids":[', "divergence": b'"kl":[', "batch": b'"tokens":'}
    start, key, rest = lines[at].partition(digit[kind])
    lines[at] = start + key + (b"7" if rest[:1] != b"7" else b"8") + rest[1:]
    records.write_bytes(b"".join(lines))
    for _ in range(2):
        checked = gate(path)
        assert checked.exit_code == 1
        assert f"line {at + 1}: the line's checksum does not fit" in checked.problems[0]
        assert "The same `vcbench run` sets damaged lines aside" in checked.problems[0]
    console = heard()
    execute(config, console=console)

    assert f"line {at + 1}: the line's checksum does not fit" in console.export_text().replace("\n", "")
    assert (path / "damaged.jsonl").read_bytes() == lines[at]
    assert gate(path).problems == ()
    assert sorted(map(json.dumps, timeless(path))) == expected


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.yaml", lambda data: b"[" * 9000),
        ("config.yaml", lambda data: data.replace(b"bitwise", b"fast   ")),
        ("provenance.json", lambda data: data.replace(b'"snapkv"', b'"random"')),
        ("provenance.json", lambda data: data.replace(b'"schema": 3', b'"schema": 99')),
        ("requests.jsonl", lambda data: data.replace(b'"schema":3', b'"schema":99')),
        ("manifest.json", lambda data: data.replace(b'"schema": 3', b'"schema": 99')),
    ],
)
def test_a_run_that_cannot_be_read_is_moved_aside_whole(config: RunConfig, name: str, change: Any) -> None:
    small = replace(config, tasks=(replace(config.tasks[0], limit=1),))
    path = execute(small, console=quiet())
    expected = timeless(path)
    changed = change((path / name).read_bytes())
    assert changed != (path / name).read_bytes()
    (path / name).write_bytes(changed)
    result = gate(path)
    assert result.exit_code == (3 if b'"schema":99' in changed.replace(b" ", b"") else 1)
    console = heard()
    execute(small, console=console)

    told = console.export_text()
    assert "cannot be read (" in told or "holds another run (" in told
    assert (path.with_name("tiny~1") / name).read_bytes() == changed
    assert timeless(path) == expected
    assert gate(path).problems == ()


def test_killed_and_resumed(config: RunConfig, tmp_path: Path) -> None:
    """kill -9 as soon as a few answers are there; what was written stays, the rest follows."""
    expected = timeless(execute(replace(config, name="whole"), console=quiet()))
    source = tmp_path / "run.yaml"
    source.write_text(dump_config(config))
    child = subprocess.Popen(
        [sys.executable, "-c", "from vcbench.cli.main import entry; entry()", "run", str(source)],
        stderr=subprocess.DEVNULL,
    )
    records = Path(config.output_dir) / config.name / "requests.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None:
        if records.is_file() and records.read_bytes().count(b"\n") >= 4:
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    survived = timeless(records.parent) if records.read_bytes().endswith(b"\n") else None
    path = execute(config, console=quiet())

    assert sorted(map(json.dumps, timeless(path))) == sorted(map(json.dumps, expected))
    assert survived is None or timeless(path)[: len(survived)] == survived


CHANGES: Mapping[str, Any] = {
    "seed": lambda c: replace(c, seed=7),
    "ratio": lambda c: replace(c, methods={**c.methods, "snapkv-2x": snapkv(2.001)}),
    "max_tokens": lambda c: replace(c, tasks=(replace(c.tasks[0], max_tokens=MAX_TOKENS + 1),)),
    "stop": lambda c: replace(c, tasks=(replace(c.tasks[0], stop=("ba be",)),)),
    "cells": lambda c: replace(c, cells=c.cells[:3]),
}


def snapkv(factor: float) -> MethodConfig:
    options = build_options("compressor", "snapkv", {"factor": factor, "window": 8})
    return MethodConfig(
        compressor="snapkv", options={key: getattr(options, key) for key in options.__dataclass_fields__}
    )


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_run_of_the_same_name_moves_the_old_one_away(config: RunConfig, change: str) -> None:
    small = replace(config, tasks=(replace(config.tasks[0], limit=1),))
    path = execute(small, console=quiet())
    old = (path / "requests.jsonl").read_bytes()
    console = heard()
    execute(CHANGES[change](small), console=console)

    assert (path.with_name("tiny~1") / "requests.jsonl").read_bytes() == old
    assert "holds another run" in console.export_text()
    assert load_run(path).complete


def trace(config: RunConfig, path: Path, rows: list[dict[str, Any]], **task: Any) -> RunConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = dict(config.tasks[0].options) | {"path": str(path)}
    made: dict[str, Any] = {"name": "trace", "max_tokens": MAX_TOKENS, "options": options} | task
    return replace(config, tasks=(TaskConfig(**made),))


def test_a_target_that_changes_is_not_scored_with_the_old_one(config: RunConfig, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": "a", "prompt_ids": [5, 6, 7], "target": "three"}]
    path = execute(trace(config, tmp_path / "p.jsonl", rows), console=quiet())
    assert [line.target for line in load_run(path).prompts.values()] == ["three"]
    rows[0]["target"] = "four"
    console = heard()
    assert execute(trace(config, tmp_path / "p.jsonl", rows), console=console) == path
    assert "the target of prompt a of task trace has changed" in console.export_text()
    assert [line.target for line in load_run(path).prompts.values()] == ["four"]


def test_a_prompt_over_the_context_is_not_asked(config: RunConfig, tmp_path: Path) -> None:
    rows = [
        {"id": "long", "prompt_ids": [5] * 500},
        {"id": "fits", "prompt_ids": [5] * 40},
        {"id": "edge", "prompt_ids": [7] * (512 - MAX_TOKENS)},
        {"id": "over", "prompt_ids": [7] * (512 - MAX_TOKENS + 1)},
        {"id": "one", "prompt_ids": [9]},
    ]
    asked = trace(config, tmp_path / "prompts.jsonl", rows)
    console = heard()
    path = execute(asked, console=console)
    run = load_run(path)
    reason = "500 prompt tokens + max_tokens 24 = 524 exceed the model's context of 512, so it is not asked"

    assert run.complete
    assert f"task trace: 2 of 5 rows excluded; the first: long: {reason}" in console.export_text()
    assert {request for _, _, request in run.requests} == {"fits", "edge", "one"}
    assert [each["id"] for each in run.provenance["excluded"]["trace"]] == ["long", "over"]
    assert run.provenance["excluded"]["trace"][0]["reason"] == reason
    assert check_run(path).exit_code != 1, "too few for a verdict, and no violation"
    (tmp_path / "run.yaml").write_text(dump_config(asked))
    planned = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml"), "--dry-run"], catch_exceptions=False)
    assert planned.exit_code == 0
    assert "task trace: 2 of 5 rows excluded; the first: long" in " ".join(planned.stderr.split())


def test_prompts_that_are_all_over_the_context_are_refused(config: RunConfig, tmp_path: Path) -> None:
    asked = trace(config, tmp_path / "prompts.jsonl", [{"id": "long", "prompt_ids": [5] * 500}])
    (tmp_path / "run.yaml").write_text(dump_config(asked))

    for options in ([], ["--dry-run"]):
        done = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml"), *options])
        message = "task 'trace' has no prompts: all 1 are excluded; the first, long: 500 prompt tokens"
        assert message in f"{done.stderr}{done.exception}"
        assert done.exit_code != 0


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine cannot serve the request named `bad`."""

    def check(request: Request, **limits: int) -> None:
        if request.id == "bad":
            raise RequestError("request bad: made to fail")
        check_request(request, **limits)

    monkeypatch.setattr("vcbench.backends.bundled.backend.check_request", check)


@pytest.mark.usefixtures("refused")
def test_a_request_that_cannot_be_served_fails_alone(config: RunConfig, tmp_path: Path) -> None:
    rows = [{"id": name, "prompt_ids": [5] * length} for name, length in (("bad", 8), ("fits", 40), ("one", 1))]
    console = heard()
    path = execute(trace(config, tmp_path / "prompts.jsonl", rows), console=console)
    run = load_run(path)

    assert run.complete
    assert "FAILED: 1 of 3 requests; the first: request bad: made to fail" in console.export_text()
    for (_, _, request), line in run.requests.items():
        assert (line.finish_reason == "error") == (request == "bad")
    assert {line.error for line in run.requests.values() if line.error} == {"request bad: made to fail"}
    found = answers(path)
    assert all(found[label, request] == found["full", request] for label, request in found if "veri" in label)


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(("name", "code"), [("bad", 1), ("good", 0)])
def test_the_exit_code_says_whether_requests_failed(config: RunConfig, tmp_path: Path, name: str, code: int) -> None:
    asked = trace(config, tmp_path / "prompts.jsonl", [{"id": name, "prompt_ids": [5] * 40}])
    (tmp_path / "run.yaml").write_text(dump_config(asked))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml")], catch_exceptions=False)

    assert done.exit_code == code
    assert ("FAILED: 1 of 1 requests" in done.stderr) == bool(code)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "prompt_ids": [3]}, {"id": "a", "prompt_ids": [4]}], "a"),
        ([{"id": "a", "prompt_ids": []}], "empty"),
        ([{"id": "a", "prompt_ids": [3, 99999]}], "99999"),
        ([{"id": "a", "prompt": "half of an emoji \ud83d"}], "surrogate"),
    ],
)
def test_bad_prompts_are_refused_before_anything_is_written(
    config: RunConfig, tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        execute(trace(config, tmp_path / "prompts.jsonl", rows), console=quiet())

    assert not Path(config.output_dir).exists()


def test_two_runs_at_once_of_one_name_are_refused(config: RunConfig) -> None:
    from vcbench.records.store import RunDirectory

    path = execute(config, console=quiet())
    with RunDirectory.open(path), pytest.raises(RecordError, match="being written by another vcbench"):
        execute(config, console=quiet())


def test_missing_cuda_is_a_configuration_problem(config: RunConfig) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ConfigError, match="no CUDA device"):
        execute(replace(config, model=replace(config.model, device="cuda")), console=quiet())


def test_the_cells_change_places_from_batch_to_batch(config: RunConfig) -> None:
    path = execute(config, console=quiet())
    order = [
        json.loads(line)["cell"] for line in (path / "requests.jsonl").read_text().splitlines() if '"batch"' in line
    ]
    labels = {cell.id: cell.label for cell in load_run(path).cells}
    batches = [[labels[cell] for cell in order[i : i + len(CELLS)]] for i in range(0, len(order), len(CELLS))]

    assert len(batches) == 3
    assert len({batch[0] for batch in batches}) == 3
    assert all(sorted(batch) == sorted(labels.values()) for batch in batches)


def test_compression_that_never_happened_is_visible(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that falls back to the full cache answers correctly, and the record says which class it used."""
    from vcbench.compressors.snapkv import SnapKV

    monkeypatch.setattr(SnapKV, "compress", lambda self, prefill, *, seed: copy_of(prefill.cache))
    run = load_run(execute(config, console=quiet()))
    used = {next(iter(line.cache_classes)) for key, line in run.requests.items() if "snapkv" in label_of(run, key[0])}

    assert used == {"FullCache"}
    assert {cell.cache_class for cell in run.cells if "snapkv" in cell.label} == {"KeptCache"}


def copy_of(cache: Any) -> Any:
    """A second full cache with the same entries."""
    from vcbench.engine.kv.cache import FullCache

    twin = FullCache(cache.shape)
    twin.store.reserve(cache.tokens)
    twin.store.copy_from(cache.store, 0, 0, cache.tokens)
    twin.tokens = twin.committed = cache.tokens
    return twin


def label_of(run: Any, cell: str) -> str:
    return next(entry.label for entry in run.cells if entry.id == cell)


def with_files(config: RunConfig, directory: Path, **files: dict[str, Any]) -> RunConfig:
    """The configuration on a copy of its model, with JSON files changed or added; by their stems."""
    shutil.copytree(config.model.id, directory)
    for stem, content in files.items():
        file = directory / f"{stem}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | content))
    return replace(config, model=replace(config.model, id=str(directory)))


def test_what_the_model_would_have_done_is_said_recorded_and_taken_over(config: RunConfig, tmp_path: Path) -> None:
    settings = {"eos_token_id": [0, 1], "repetition_penalty": 1.3}
    asked = with_files(config, tmp_path / "model", generation_config=settings)
    console = heard()
    path = execute(asked, console=console)
    said = "generation_config.json: not applied, though transformers applies it to greedy decoding too: "
    assert f"note: {said}repetition_penalty 1.3; `sampling: model` takes over all of it" in console.export_text()
    model = load_run(path).provenance["model"]
    assert model["generation_config"] == {"dropped": {"repetition_penalty": 1.3}}
    assert any(note.startswith(said) for note in model["notes"])
    plain = {cell.label: cell.id for cell in load_run(path).cells}

    taken = replace(asked, name="taken", tasks=(replace(asked.tasks[0], sampling=Sampling(model=True)),))
    console = heard()
    path = execute(taken, console=console)
    run = load_run(path)
    assert "not applied" not in console.export_text()
    assert run.config["tasks"][0]["sampling"]["repetition_penalty"] == 1.3
    assert all(plain[cell.label] != cell.id for cell in run.cells)
    written = replace(
        asked, name="written", tasks=(replace(asked.tasks[0], sampling=Sampling(repetition_penalty=1.3)),)
    )
    assert {cell.id for cell in load_run(execute(written, console=quiet())).cells} == {cell.id for cell in run.cells}
    assert execute(taken, console=quiet()) == path
    found = answers(path)
    assert all(found[label, request] == found["full", request] for label, request in found if "veri" in label)


def test_what_the_model_cannot_be_given_is_refused_before_anything_is_written(
    config: RunConfig, tmp_path: Path
) -> None:
    asked = with_files(config, tmp_path / "model", generation_config={"no_repeat_ngram_size": 3, "min_length": 5})
    asked = replace(asked, tasks=(replace(asked.tasks[0], sampling=Sampling(model=True)),))
    with pytest.raises(ModelError, match="cannot take over min_length 5, no_repeat_ngram_size 3"):
        execute(asked, console=quiet())
    assert not Path(asked.output_dir).exists()


def test_arguments_of_the_template_change_the_question_and_the_cells(config: RunConfig, tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{% if short is defined and short %}<stop>{% endif %}"
    asked = with_files(config, tmp_path / "model", tokenizer_config={"chat_template": template})
    asked = trace(asked, tmp_path / "p.jsonl", [{"id": "one", "prompt": "<stop><end>"}])
    asked = replace(asked, tasks=(replace(asked.tasks[0], options=asked.tasks[0].options | {"format": "chat"}),))
    plain = load_run(execute(asked, console=quiet()))
    given = replace(asked, name="given", model=replace(asked.model, template={"short": True}))
    short = load_run(execute(given, console=quiet()))

    assert len(short.prompts["trace", "one"].prompt_ids) == len(plain.prompts["trace", "one"].prompt_ids) + 1
    assert not {cell.id for cell in short.cells} & {cell.id for cell in plain.cells}
    assert short.config["model"]["template"] == {"short": True}
    assert short.provenance["model"]["template"] == {"short": True}
    wrong = replace(asked, name="wrong", model=replace(asked.model, template={"shrt": True}))
    with pytest.raises(ModelError, match=r"does not read `shrt`.*did you mean 'short'"):
        execute(wrong, console=quiet())
    assert not (Path(asked.output_dir) / "wrong").exists()


@pytest.mark.parametrize("damage", ["cut short", "another shape"])
def test_damaged_weights_leave_what_was_there_as_it_was(config: RunConfig, tmp_path: Path, damage: str) -> None:
    asked = with_files(config, tmp_path / "model")
    path = execute(asked, console=quiet())
    before = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    weights = tmp_path / "model" / "model.safetensors"
    if damage == "cut short":
        weights.write_bytes(weights.read_bytes()[:-4])
    else:
        file = tmp_path / "model" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"intermediate_size": 32}))
    (tmp_path / "run.yaml").write_text(dump_config(asked))

    with pytest.raises(ModelError, match="fetch the model again"):
        execute(asked, console=quiet())
    planned = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml"), "--dry-run"])
    assert planned.exit_code != 0
    assert {file: file.read_bytes() for file in path.iterdir() if file.is_file()} == before
    assert [each.name for each in path.parent.iterdir() if not each.name.startswith(".")] == [path.name]


def test_every_request_is_charged_what_its_cell_would_need_by_itself(config: RunConfig) -> None:
    """Prefill without what other methods gathered, compression of its own, and the first token after both."""
    run = load_run(execute(config, console=quiet()))
    labels = {cell.id: cell for cell in run.cells}
    for (cell, task, request), line in run.requests.items():
        timing, whole = line.timing, run.prompts[task, request].timing["prefill_s"]
        assert 0 < timing["prefill_s"] <= whole
        assert (timing["compress_s"] > 0) == (labels[cell].arm != "full") or timing["compress_s"] < 1e-3
        before = timing["prefill_s"] + timing["compress_s"] + timing["offload_s"]
        assert before <= timing["ttft_s"] <= before + timing["decode_s"]
    for batch in run.batches:
        own = [run.requests[batch.cell, batch.task, name].timing["compress_s"] for name in batch.requests]
        assert batch.timing["compress_s"] == pytest.approx(sum(own))
        assert {"wall_s", "cpus", "load_1m"} <= batch.timing.keys()
    rows = summarise(run)
    assert all(row.measures["end_to_end_speedup"] is not None for row in rows)
    assert [row.paired for row in rows] == [row.batches for row in rows]
