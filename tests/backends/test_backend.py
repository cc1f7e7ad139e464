"""A run over a backend that is not the bundled one: what it cannot give is missing, said, and never invented."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vcbench.backends.base import Admission, Asked, Backend, Capabilities, Serving
from vcbench.backends.cells import Cell, Identity, Plan
from vcbench.config.schema import Arm, CellConfig, MetricsConfig, RunConfig
from vcbench.engine.types import BatchTiming, Generation, Request, Round
from vcbench.errors import ConfigError, RecordError
from vcbench.forensics.tiny import tiny_config
from vcbench.lossless.check import check_run
from vcbench.models.store import ModelFiles
from vcbench.records.codec import plain, seal
from vcbench.records.reader import load_run
from vcbench.report.compare import render
from vcbench.runners.run import execute

CELLS = (CellConfig(arm="full"), CellConfig(arm="vericache", method="snapkv-2x", draft_length=4))
QUIET = Console(quiet=True)
REFUSED = "r001"


class Elsewhere(Backend):
    """Answers with the prompt's last ids, as a server without caches of ours would: ids, counters and a clock."""

    name = "elsewhere"

    def __init__(self, arms: tuple[Arm, ...] = ("full", "vericache"), version: int = 1, dies_after: int = 99) -> None:
        self.arms, self.version, self.left = arms, version, dies_after
        self.calls: list[str] = []

    def __call__(self, config: RunConfig, files: ModelFiles) -> Backend:
        return self

    def identity(self) -> Identity:
        return Identity(device="server", dtype="unknown", code_sha256="elsewhere", kernels={})

    def capabilities(self) -> Capabilities:
        return Capabilities(arms=self.arms)

    def open(self, plan: Plan, stage: Callable[[str], None]) -> Mapping[str, Any]:
        self.calls.append("open")
        return {"server": {"version": self.version}}

    def admit(self, batch: Sequence[Asked]) -> Iterator[Admission]:
        for asked in batch:
            error = "the server refuses it" if asked.request.id == REFUSED else None
            yield Admission(asked.request.id, error=error)

    def serve(self, cell: Cell, requests: Sequence[Request]) -> Serving:
        timing = BatchTiming()
        return Serving(self._answers(cell, requests, timing), timing)

    def release(self) -> None:
        self.calls.append("release")

    def _answers(self, cell: Cell, requests: Sequence[Request], timing: BatchTiming) -> Iterator[Generation]:
        for request in requests:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            self.calls.append(f"{cell.config.arm} {request.id}")
            rounds = [Round(drafted=4, accepted=2, committed=3)] if cell.config.arm == "vericache" else []
            timing.decode_s += 0.5
            ids = list(request.prompt_ids[-4:])
            yield Generation(request_id=request.id, token_ids=ids, finish_reason="length", rounds=rounds)


@pytest.fixture
def config(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    made = tiny_config("elsewhere", requests=3, batch_size=2, cells=CELLS)
    tasks = tuple(replace(task, max_tokens=4) for task in made.tasks)  # as many as `Elsewhere` answers with
    return replace(made, tasks=tasks, output_dir=str(tmp_path / "runs"), metrics=MetricsConfig(divergence=True))


def test_its_answers_are_recorded_and_nothing_that_it_did_not_give(config: RunConfig) -> None:
    backend = Elsewhere()
    path = execute(config, console=QUIET, backend=backend)
    run = load_run(path)

    assert run.complete
    assert run.provenance["backend"] == {"name": "elsewhere", "capabilities": plain(asdict(backend.capabilities()))}
    assert run.provenance["opened"] == {"server": {"version": 1}}
    assert not run.divergences
    for (_, task, request), line in run.requests.items():
        if request == REFUSED:
            assert line.error == "the server refuses it"
            continue
        assert line.token_ids == run.prompts[task, request].prompt_ids[-4:]
        assert (line.logits_sha256, line.kv_start, line.kv_end, line.cache_classes) == ("", None, None, {})
    for batch in run.batches:
        assert batch.timing["decode_s"] == 0.5 * len(batch.requests)
        assert not {"draft_s", "verify_s", "other_s"} & batch.timing.keys()
    assert backend.calls.count("open") == 1
    assert backend.calls.count("release") == 2


def test_the_gate_and_the_tables_say_what_is_missing(config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    answered = trimmed(config)
    path = execute(answered, console=QUIET, backend=Elsewhere())
    result = check_run(path)
    render([path], as_json=True, as_csv=False, as_markdown=False, console=QUIET)
    notes = json.loads(capsys.readouterr().out)["notes"]

    assert (result.outcome, result.exactness) == ("PASS", "unknown")
    assert any("no hashes of logits" in remark for remark in result.remarks)
    assert any("says nothing of its caches" in remark for remark in result.remarks)
    assert {guard.name for cell in result.cells for guard in cell.guards} == {
        "drafts_proposed", "drafts_accepted", "drafts_rejected",
    }  # fmt: skip
    assert any("no classes and bytes of caches" in note and "no divergences" in note for note in notes)


def test_what_is_recorded_of_caches_is_judged_whatever_the_backend_says_of_itself(config: RunConfig) -> None:
    """Records cannot buy themselves out of a guard by saying that they know nothing."""
    path = execute(trimmed(config), console=QUIET, backend=Elsewhere())
    lines = [json.loads(line) for line in (path / "requests.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "request" and line["drafted"]:
            line["cache_classes"] = {"FullCache": 2}
    (path / "requests.jsonl").write_bytes(b"".join(map(seal, lines)))
    guards = {guard.name: guard.passed for cell in check_run(path).cells for guard in cell.guards}

    assert guards["cache_class"] is False


def trimmed(config: RunConfig) -> RunConfig:
    """Without the request that the server refuses."""
    return replace(config, tasks=(replace(config.tasks[0], limit=1),))


def test_an_arm_that_it_does_not_serve_is_refused_in_the_plan(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="the backend serves full, and this is vericache"):
        execute(config, console=QUIET, backend=Elsewhere(arms=("full",)))
    assert not Path(config.output_dir).exists()


@pytest.mark.parametrize("answers", range(4))
def test_stopped_anywhere_it_asks_for_what_is_missing_alone(config: RunConfig, answers: int) -> None:
    whole = execute(replace(config, name="whole"), console=QUIET, backend=Elsewhere())
    with pytest.raises(KeyboardInterrupt):
        execute(config, console=QUIET, backend=Elsewhere(dies_after=answers))
    again = Elsewhere()
    path = execute(config, console=QUIET, backend=again)
    found, expected = ({key: line.token_ids for key, line in load_run(each).requests.items()} for each in (path, whole))

    assert found == expected
    assert sum(" r" in call for call in again.calls) == 4 - answers


def test_a_backend_that_found_out_otherwise_before_is_not_mixed_in(config: RunConfig) -> None:
    with pytest.raises(KeyboardInterrupt):
        execute(config, console=QUIET, backend=Elsewhere(dies_after=1))
    before = (Path(config.output_dir) / config.name / "requests.jsonl").read_bytes()
    with pytest.raises(RecordError, match=r"begun with opened .*'version': 1.* now .*'version': 2.*another run name"):
        execute(config, console=QUIET, backend=Elsewhere(version=2))

    assert (Path(config.output_dir) / config.name / "requests.jsonl").read_bytes() == before


def test_a_finished_run_does_not_open_its_backend(config: RunConfig) -> None:
    execute(config, console=QUIET, backend=Elsewhere())
    again, console = Elsewhere(), Console(record=True, width=1000, file=io.StringIO())
    execute(config, console=console, backend=again)

    assert again.calls == []
    assert "is complete; nothing to run" in console.export_text()
