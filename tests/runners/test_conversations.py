"""Interactive conversations through the whole runner: scripted answers, real prompts, records, gate and scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.runners.test_task_configs import embedded_model, tiny
from tests.tasks.cfb.examples import sample
from vcbench.config.load import load_config
from vcbench.config.schema import ModelConfig, RunConfig
from vcbench.engine.decoding.session import CellSetup, OnEnd, Prefilled, StreamFactory
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import BatchTiming, Generation
from vcbench.models.tokenizer import Tokenizer
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
metrics: {{divergence: false}}
engine: {{batch_size: 2}}
cells:
  - arm: full
  - {{arm: lossy, method: snap}}
  - {{arm: vericache, method: snap, draft_length: 4}}
"""


class Scripted:
    """Answers with the golden calls of each turn; the lossy arm asks for another port once."""

    def __init__(self, model: ModelConfig) -> None:
        self.tokenizer = Tokenizer(Path(model.id))
        self.steps = {each.id: each.steps for each in sample()}
        self.asked: list[tuple[str, str]] = []

    def __call__(
        self,
        decoder: Decoder,
        setup: CellSetup,
        batch: Sequence[Prefilled],
        *,
        on_end: OnEnd,
        stream: StreamFactory | None = None,
    ) -> BatchTiming:
        for item in batch:
            self.asked.append((setup.arm, item.request.id))
            ids = self.tokenizer.encode(self._text(setup.arm, item.request.id))
            on_end(Generation(request_id=item.request.id, token_ids=ids, finish_reason="length"))
        return BatchTiming()

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
    path = execute(config, console=Console(quiet=True), engine=engine)
    run = load_run(path)
    full, lossy, veri = run.cells
    assert run.complete
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
    path = execute(config, console=Console(quiet=True), engine=Scripted(tiny))
    whole = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(whole) if json.loads(line)["kind"] == "turn")
    (path / "manifest.json").unlink()
    (path / "requests.jsonl").write_bytes(b"".join(whole[:at]))
    engine = Scripted(tiny)
    execute(config, console=Console(quiet=True), engine=engine)
    assert (path / "requests.jsonl").read_bytes().count(b"\n") == len(whole)
    assert not any(request.endswith("/t1") for _, request in engine.asked)
    assert load_run(path).complete
