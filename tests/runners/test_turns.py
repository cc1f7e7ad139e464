"""Conversations: every cell follows its own answers, and those that answered alike share prompt, prefill and record."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vcbench import registry
from vcbench.backends.sources import plugin_sha256
from vcbench.config.schema import CellConfig, MetricsConfig, RunConfig
from vcbench.errors import RecordError
from vcbench.forensics.tiny import tiny_config
from vcbench.lossless.check import check_run
from vcbench.records.reader import load_run
from vcbench.runners.run import execute
from vcbench.tasks.base import Answer, Prompt, PromptTokenizer, follow_up_id
from vcbench.tasks.trace import TraceTask

CELLS = (
    CellConfig(arm="full"),
    CellConfig(arm="lossy", method="snapkv-2x"),
    CellConfig(arm="vericache", method="snapkv-2x", draft_length=4),
)
TURNS = 3


class Conversation(TraceTask):
    """Asks on with the prompt, the answer and the prompt's beginning; every fifth first token ends it."""

    def follow_up(self, prompt: Prompt, answer: Answer, tokenizer: PromptTokenizer) -> Prompt | None:
        turn = prompt.meta.get("turn", 1)
        if turn == TURNS or answer.token_ids[-1] % 5 == 0:
            return None
        ids = (*prompt.ids, *answer.token_ids, *prompt.ids[: prompt.target or 4])
        root = prompt.id.partition("/")[0]
        return Prompt(
            id=follow_up_id(prompt, ids, name=f"{root}/t{turn + 1}"),
            ids=ids,
            document_sha256=prompt.document_sha256,
            target=prompt.target,
            meta={"turn": turn + 1},
        )


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    registry.names("task")
    monkeypatch.setitem(registry._entries, ("task", "trace"), Conversation)
    plugin_sha256.cache_clear()
    yield
    plugin_sha256.cache_clear()


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    made = tiny_config("turns", requests=5, batch_size=2, cells=CELLS)
    task = replace(made.tasks[0], max_tokens=24)
    return replace(made, output_dir=str(tmp_path / "runs"), tasks=(task,), metrics=MetricsConfig(divergence=True))


def run(config: RunConfig) -> Path:
    return execute(config, console=Console(quiet=True))


def lines(path: Path) -> list[str]:
    """The run's lines, sorted, but for their times and for how requests were batched."""
    found = [json.loads(line) for line in (path / "requests.jsonl").read_text().splitlines()]
    kept = [
        {k: v for k, v in line.items() if k not in ("timing", "check")} for line in found if line["kind"] != "batch"
    ]
    return sorted(map(json.dumps, kept))


def test_verified_cells_are_asked_what_full_kv_is_asked(config: RunConfig) -> None:
    path = run(config)
    found = load_run(path)
    full, lossy, veri = found.cells
    asked = {cell.label: found.asked(cell, "trace") for cell in found.cells}

    assert found.complete
    assert asked[full.label] == asked[veri.label] != asked[lossy.label]
    assert max(line.meta.get("turn", 1) for line in found.prompts.values()) == TURNS
    assert set(found.requests) == {(cell.id, "trace", name) for cell in found.cells for name in asked[cell.label]}
    assert set(found.turns) == set(found.requests)
    for name in asked[full.label]:
        ours, theirs = (found.requests[cell.id, "trace", name] for cell in (full, veri))
        assert (ours.token_ids, ours.logits_sha256) == (theirs.token_ids, theirs.logits_sha256)
    shared = set(asked[full.label]) & set(asked[lossy.label])
    measured = {cell.id: {request for c, _, request in found.divergences if c == cell.id} for cell in found.cells}
    assert measured == {full.id: set(), lossy.id: shared, veri.id: set(asked[full.label])}
    result = check_run(path)
    assert (result.outcome, result.n) == ("PASS", len(asked[full.label]))


def test_a_follow_up_holds_the_history_that_led_to_it(config: RunConfig) -> None:
    found = load_run(run(config))
    for (cell, task, request), turn in found.turns.items():
        if turn.follow_up is None:
            continue
        before, after = found.prompts[task, request], found.prompts[task, turn.follow_up]
        history = [*before.prompt_ids, *found.requests[cell, task, request].token_ids]
        assert after.prompt_ids[: len(history)] == history


def test_a_cell_alone_has_the_same_conversations(config: RunConfig) -> None:
    together = load_run(run(config))
    for cell in config.cells[::2]:
        alone = load_run(run(replace(config, name=f"only-{cell.arm}", cells=(cell,))))
        there = next(other for other in together.cells if other.arm == cell.arm)
        asked = set(together.asked(there, "trace"))
        assert set(alone.asked(alone.cells[0], "trace")) == {name for _, name in alone.prompts} == asked
        assert not alone.divergences, "without full KV there is nothing to compare with"


def test_a_run_cut_anywhere_resumes_to_the_same_lines(config: RunConfig) -> None:
    small = replace(config, tasks=(replace(config.tasks[0], limit=2),))
    path = run(small)
    expected = lines(path)
    whole = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    for kept in range(2, len(whole), 9):
        (path / "manifest.json").unlink(missing_ok=True)
        (path / "requests.jsonl").write_bytes(b"".join(whole[:kept]) + whole[kept][:20])
        assert not load_run(path).complete
        assert lines(run(small)) == expected, kept
        assert load_run(path).complete


def test_a_finished_run_is_left_alone(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run(config)
    before = (path / "requests.jsonl").read_bytes()
    monkeypatch.setattr(Conversation, "follow_up", lambda *_: pytest.fail("nothing is asked again"))
    console = Console(record=True, width=1000, file=io.StringIO())
    execute(config, console=console)
    assert "is complete; nothing to run" in console.export_text()
    assert (path / "requests.jsonl").read_bytes() == before


def test_a_follow_up_over_the_context_is_not_asked(config: RunConfig, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"id": name, "prompt_ids": ids * 200, "target": 300}
        for name, ids in (("a", [5, 9]), ("b", [7, 11]), ("c", [13, 3]))
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = replace(config.tasks[0], options={**config.tasks[0].options, "path": str(prompts)})
    found = load_run(run(replace(config, tasks=(task,))))
    ends = [line for line in found.turns.values() if line.not_asked]
    assert found.complete
    assert all(line.finish_reason != "error" for line in found.requests.values())
    assert ends
    assert all(line.follow_up is None and "exceed the model's context of 512" in str(line.not_asked) for line in ends)
    asked = {(cell.id, "trace", name) for cell in found.cells for name in found.asked(cell, "trace")}
    assert set(found.requests) == asked


def test_data_that_changes_a_follow_up_alone_makes_a_new_run(config: RunConfig, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    row: dict[str, Any] = {"id": "a", "prompt_ids": [5, 9, 13] * 30, "target": 6}
    task = replace(config.tasks[0], options={**config.tasks[0].options, "path": str(prompts)})
    small = replace(config, tasks=(task,))
    prompts.write_text(json.dumps(row))
    path = run(small)
    prompts.write_text(json.dumps(row | {"target": 7}))
    console = Console(record=True, width=1000, file=io.StringIO())
    assert execute(small, console=console) == path
    assert "what follows prompt a of task trace has changed" in console.export_text()
    assert path.with_name("turns~1").is_dir()


def test_follow_ups_that_are_not_the_recorded_ones_are_refused(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(config)
    whole = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(whole) if b'"follow_up":"' in line)
    (path / "manifest.json").unlink()
    (path / "requests.jsonl").write_bytes(b"".join(whole[: at + 1]))
    monkeypatch.setattr(Conversation, "follow_up", lambda *_: None)
    with pytest.raises(RecordError, match="the task's data has changed; choose another run name"):
        run(config)
