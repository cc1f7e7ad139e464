"""Interactive conversations through the whole runner: scripted answers, real prompts, records, gate and scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.runners.test_task_configs import embedded_model, tiny
from tests.tasks.cfb.examples import sample
from vcbench.backends.base import Admission, Asked, Backend, Capabilities, Serving
from vcbench.backends.cells import Cell, Identity, Plan
from vcbench.config.load import load_config
from vcbench.config.schema import ModelConfig, RunConfig
from vcbench.engine.types import BatchTiming, Generation, Request
from vcbench.models.store import ModelFiles
from vcbench.models.tokenizer import Tokenizer
from vcbench.records.codec import plain
from vcbench.records.reader import load_run
from vcbench.runners.run import execute
from vcbench.scoring.document import score_and_write
from vcbench.tasks.tool_calls.formats import FORMATS

__all__ = ["embedded_model", "tiny"]
NAME = "complexfuncbench"
TEXT = f"""
name: talk
model: {{id: smollm2-135m}}
tasks: [{{name: {NAME}, mode: interactive, limit: 2, max_tokens: 300}}]
methods: {{snap: {{compressor: snapkv, factor: 4}}}}
metrics: {{divergence: true}}
engine: {{batch_size: 2}}
cells:
  - arm: full
  - {{arm: lossy, method: snap}}
  - {{arm: vericache, method: snap, draft_length: 4}}
"""


class Scripted(Backend):
    """Answers with the golden calls of each turn; the lossy arm asks for another port once.

    A backend without caches: it has neither logits nor bytes, and measures nothing.
    """

    name = "scripted"

    def __init__(self, model: ModelConfig) -> None:
        self.tokenizer = Tokenizer(Path(model.id))
        self.steps = {each.id: each.steps for each in sample()}
        self.asked: list[tuple[str, str]] = []
        self.admitted: set[str] = set()

    def __call__(self, config: RunConfig, files: ModelFiles) -> Backend:
        return self

    def identity(self) -> Identity:
        return Identity(device="none", dtype="float32", code_sha256="of the script", kernels={})

    def capabilities(self) -> Capabilities:
        return Capabilities(arms=("full", "lossy", "vericache"))

    def open(self, plan: Plan, stage: Callable[[str], None]) -> Mapping[str, Any]:
        return {"script": "golden"}

    def admit(self, batch: Sequence[Asked]) -> Iterator[Admission]:
        for asked in batch:
            self.admitted.add(asked.request.id)
            yield Admission(asked.request.id)

    def serve(self, cell: Cell, requests: Sequence[Request]) -> Serving:
        return Serving(self._answers(cell, requests), BatchTiming())

    def release(self) -> None:
        self.admitted.clear()

    def _answers(self, cell: Cell, requests: Sequence[Request]) -> Iterator[Generation]:
        assert {request.id for request in requests} <= self.admitted
        for request in requests:
            self.asked.append((cell.config.arm, request.id))
            ids = self.tokenizer.encode(self._text(cell.config.arm, request.id))
            yield Generation(request_id=request.id, token_ids=ids, finish_reason="length")

    def _text(self, arm: str, request: str) -> str:
        conversation, _, turn = request.partition("/t")
        number = int(turn.partition("-")[0]) - 1
        if number >= len(self.steps[conversation]):
            return "That is all."
        text = FORMATS["hermes"].write(self.steps[conversation][number].calls)
        return text.replace("prt_sul_11", "prt_bra_03", 1) if arm == "lossy" and conversation == "Ferries-1" else text


def configured(model: ModelConfig, path: Path) -> RunConfig:
    source = path / "talk.yaml"
    source.write_text(TEXT)
    return replace(load_config(source), model=model, output_dir=str(path / "runs"))


@pytest.mark.model
def test_golden_conversations_succeed_and_a_slip_leads_elsewhere(tiny: ModelConfig, tmp_path: Path) -> None:
    engine, config = Scripted(tiny), configured(tiny, tmp_path)
    path = execute(config, console=Console(quiet=True), backend=engine)
    run = load_run(path)
    full, lossy, veri = run.cells
    assert run.complete
    assert not run.divergences, "what a backend cannot measure is not owed"
    assert run.provenance["backend"] == {"name": "scripted", "capabilities": plain(asdict(engine.capabilities()))}
    assert run.provenance["opened"] == {"script": "golden"}
    assert len(engine.asked) == len(set(engine.asked)) == len(run.requests) == len(run.turns)
    assert run.asked(full, NAME) == run.asked(veri, NAME)
    assert len(run.asked(full, NAME)) == 8
    ours, theirs = set(run.asked(lossy, NAME)), set(run.asked(full, NAME))
    assert len(ours & theirs) == 6
    assert {request.partition("/")[0] for request in ours ^ theirs} == {"Ferries-1"}
    (task,) = score_and_write(load_run(path)).tasks
    section = next(each for each in task.sections if each.source == "task")
    success = next(metric for metric in section.metrics if metric.name == "success")
    found = {cell.arm: task.figure(section, success, cell).estimate for cell in task.cells}
    assert {arm: estimate.value for arm, estimate in found.items() if estimate} == {
        "full": 1.0,
        "vericache": 1.0,
        "lossy": 0.5,
    }


@pytest.mark.model
def test_cut_between_an_answer_and_its_next_turn_it_goes_on_there(tiny: ModelConfig, tmp_path: Path) -> None:
    config = configured(tiny, tmp_path)
    config = replace(config, tasks=(replace(config.tasks[0], limit=1),))
    path = execute(config, console=Console(quiet=True), backend=Scripted(tiny))
    whole = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(whole) if json.loads(line)["kind"] == "turn")
    (path / "manifest.json").unlink()
    (path / "requests.jsonl").write_bytes(b"".join(whole[:at]))
    engine = Scripted(tiny)
    execute(config, console=Console(quiet=True), backend=engine)
    assert (path / "requests.jsonl").read_bytes().count(b"\n") == len(whole)
    assert not any(request.endswith("/t1") for _, request in engine.asked)
    assert load_run(path).complete


@pytest.mark.model
def test_conversations_are_taken_over_whole(tiny: ModelConfig, tmp_path: Path) -> None:
    """Another draft length: full KV's and the lossy cell's turns are copied, the new cell finds its own way."""
    config = configured(tiny, tmp_path)
    first = load_run(execute(config, console=Console(quiet=True), backend=Scripted(tiny)))
    changed = replace(config, cells=(*config.cells[:2], replace(config.cells[2], draft_length=5)))
    script = Scripted(tiny)
    run = load_run(execute(changed, console=Console(quiet=True), backend=script, beside="other"))
    assert {arm for arm, _ in script.asked} == {"vericache"}
    assert run.complete
    for old, new in zip(first.cells, run.cells, strict=True):
        assert set(run.asked(new, NAME)) == set(first.asked(old, NAME))
    assert run.provenance["taken_over"]["cells"] == ["full", "lossy snap"]


@pytest.mark.model
def test_a_conversation_that_is_not_asked_any_more_is_set_aside_with_its_turns(
    tiny: ModelConfig, tmp_path: Path
) -> None:
    config = configured(tiny, tmp_path)
    before = load_run(execute(config, console=Console(quiet=True), backend=Scripted(tiny)))
    script = Scripted(tiny)
    fewer = replace(config, tasks=(replace(config.tasks[0], limit=1),))
    run = load_run(execute(fewer, console=Console(quiet=True), backend=script))
    assert script.asked == []
    assert run.complete
    conversations = {request.partition("/")[0] for _, request in run.prompts}
    assert len(conversations) == 1
    assert run.set_aside == len(before.prompts) - len(run.prompts) > 0
    assert {key[2].partition("/")[0] for key in run.turns} == conversations
