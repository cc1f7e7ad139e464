"""A run whose batch is refilled has the records of one that decodes whole batches, but for the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from vcbench.backends.base import Capabilities
from vcbench.backends.bundled.backend import Bundled
from vcbench.config.schema import CellConfig, MetricsConfig, RunConfig
from vcbench.errors import ConfigError
from vcbench.forensics.gate import run_for_gate
from vcbench.forensics.tiny import CASCADE, CELLS, tiny_config
from vcbench.lossless.check import check_loaded
from vcbench.metrics.summary import summarise
from vcbench.records.reader import Run, load_run
from vcbench.runners.run import execute

QUIET = Console(quiet=True)
REQUESTS, BATCH = 7, 3


@pytest.fixture
def config(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    cells = (*CELLS[:2], CellConfig(arm="lossy", method="snapkv-2x"), CASCADE[1])
    made = tiny_config("plain", requests=REQUESTS, batch_size=BATCH, cells=cells)
    task = replace(made.tasks[0], max_tokens=20)
    return replace(made, output_dir=str(tmp_path / "runs"), tasks=(task,), metrics=MetricsConfig(divergence=True))


def refilled(config: RunConfig) -> RunConfig:
    return replace(config, name="refilled", engine=replace(config.engine, refill=True))


def content(run: Run) -> dict[tuple[str, ...], object]:
    """All that was recorded of requests but seconds."""
    lines = {**run.requests, **run.divergences, **run.prompts}
    return {(type(line).__name__, *key): replace(line, timing={}) for key, line in lines.items()}  # type: ignore[type-var]


def test_records_are_those_of_whole_batches(config: RunConfig) -> None:
    plain = load_run(execute(config, console=QUIET))
    ours = load_run(execute(refilled(config), console=QUIET))
    assert content(ours) == content(plain)
    assert len(ours.divergences) == 3 * REQUESTS
    assert [batch.refilled for batch in plain.batches] == [False] * 12
    assert [batch.refilled for batch in ours.batches] == [True] * 4
    for batch in ours.batches:
        assert len(batch.requests) == REQUESTS
        assert batch.tokens == sum(len(ours.requests[batch.cell, batch.task, r].token_ids) - 1 for r in batch.requests)
        assert 1 <= batch.timing["row_steps"] / batch.timing["steps"] <= BATCH
    assert all(line.timing["prefill_s"] > 0 for line in ours.requests.values())


def test_speeds_are_over_the_same_requests(config: RunConfig) -> None:
    """One queue of all prompts in every cell: a speed-up is there, from one pair of queues."""
    rows = summarise(load_run(execute(refilled(config), console=QUIET)))
    for row in rows:
        speedup, rate = row.measures["speedup"], row.measures["tokens_per_s"]
        assert rate is not None
        assert speedup is not None
        assert speedup.n == 1
        assert row.problems == ()
        assert (row.speed.verify_s_per_round is not None) == (row.cell.arm == "vericache")


def test_the_gate_passes_and_faults_show(config: RunConfig) -> None:
    config = replace(
        refilled(config), cells=(config.cells[0], config.cells[3]), metrics=MetricsConfig(divergence=False)
    )
    assert check_loaded(load_run(execute(config, console=QUIET))).outcome == "PASS"
    for fault in ("request_released_too_early", "admitted_with_anothers_entries"):
        result = check_loaded(load_run(run_for_gate(config, fault=fault, console=QUIET)))
        assert result.outcome == "FAIL", fault


def test_a_cut_run_goes_on_where_it_stopped(config: RunConfig) -> None:
    config = refilled(config)
    path = execute(config, console=QUIET)
    whole = load_run(path)
    lines = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (path / "manifest.json").unlink()
    (path / "requests.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    execute(config, console=QUIET)
    again = load_run(path)
    assert again.complete
    assert content(again) == content(whole)


def test_a_backend_that_cannot_is_refused(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundled, "capabilities", lambda self: Capabilities(arms=("full", "lossy", "vericache")))
    with pytest.raises(ConfigError, match="backend bundled does not take requests in one by one"):
        execute(refilled(config), console=QUIET)
