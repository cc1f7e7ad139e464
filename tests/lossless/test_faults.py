"""Every fault that can be injected turns the gate red, and the sound engine stays green."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.lossless.conftest import TinyRuns
from vcbench.config.schema import CellConfig
from vcbench.errors import UsageError
from vcbench.forensics.gate import fault_obstacle, run_for_gate, tiny_run
from vcbench.forensics.tiny import DRAWN_REQUESTS, REQUESTS
from vcbench.lossless.check import check_loaded
from vcbench.lossless.faults import FAULTS, find_fault
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.result import Verdict
from vcbench.models.tiny import LAYERS

EXPECTED = {
    "position_from_kept_length": Verdict.VIOLATION,
    "no_rollback_of_last_draft": Verdict.VIOLATION,
    "eos_only_checked_at_block_end": Verdict.STOP_MISMATCH,
    "cap_before_stop": Verdict.STOP_MISMATCH,
    "nan_accepts_all": Verdict.VIOLATION,
    "penalty_ignores_same_round": Verdict.VIOLATION,
    "noise_by_draft_index": Verdict.VIOLATION,
    "penalty_sees_rejected_drafts": Verdict.VIOLATION,
    "compressed_cache_in_verify": Verdict.VIOLATION,
    "drop_last_request": Verdict.MISSING,
    "wrong_model_records": Verdict.VIOLATION,
    "middle_level_keeps_one_too_many": Verdict.MISSING,
    "request_released_too_early": Verdict.STOP_MISMATCH,
    "admitted_with_anothers_entries": Verdict.VIOLATION,
}


def failed_guards(result: CheckResult) -> set[str]:
    return {guard.name for cell in result.cells for guard in cell.vacuous}


def test_a_sound_engine_passes(tiny_runs: TinyRuns) -> None:
    result = check_loaded(tiny_runs(None))
    assert (result.outcome, result.level, result.n) == ("PASS", "bitwise", 5 * (REQUESTS + DRAWN_REQUESTS))
    assert result.fault is None


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_turns_red(tiny_runs: TinyRuns, fault: str) -> None:
    result = check_loaded(tiny_runs(fault))
    assert result.outcome == FAULTS[fault].outcome
    assert result.fault == fault
    if fault in EXPECTED:
        assert EXPECTED[fault] in {verdict.verdict for verdict in result.verdicts}
        assert result.exit_code == 1
    else:
        assert result.passed == result.n
        assert result.exit_code == 2


def test_what_makes_equal_outputs_vacuous(tiny_runs: TinyRuns) -> None:
    replaced = check_loaded(tiny_runs("cache_silently_replaced"))
    assert {"cache_class", "smaller_cache"} <= failed_guards(replaced)
    assert failed_guards(check_loaded(tiny_runs("residual_never_quantised"))) == {"drafts_rejected", "smaller_cache"}


@pytest.mark.parametrize("fault", ["draft_positions_shifted", "stale_draft_entries"])
def test_what_is_wrong_in_drafting_alone_shows_where_nothing_may_be_rejected(tiny_runs: TinyRuns, fault: str) -> None:
    result = check_loaded(tiny_runs(fault))
    assert result.passed == result.n
    assert "none" in {cell.cell.compressor for cell in result.cells if cell.vacuous}
    assert failed_guards(result) == {"all_accepted"}


def test_the_gates_own_run_has_every_kind_of_cell(tiny_runs: TinyRuns) -> None:
    """Greedy and drawn, with penalties and stop strings, in memory and read back from disk, lossy and not."""
    run = tiny_runs(None)
    assert {cell.compressor for cell in run.cells} == {None, "snapkv", "kivi", "none"}
    assert {cell.full_cache for cell in run.cells} == {"memory", "disk"}
    first, second = run.config["tasks"]
    assert (first["sampling"]["temperature"], bool(second["sampling"]["temperature"])) == (0, True)
    assert second["sampling"]["repetition_penalty"] != 1
    ends = {(line.task, line.finish_reason) for line in run.requests.values()}
    assert ends >= {("trace", "stop"), ("trace", "length"), ("jsonl", "stop")}
    said = [line.text for line in run.requests.values() if line.task == "jsonl"]
    assert any(text.endswith(tuple(second["stop"])) for text in said)
    for cell in run.cells:
        for task in run.tasks:
            for line in run.requests_of(cell, task) if cell.full_cache == "disk" and cell.answers(task) else ():
                assert line.kv_end is not None
                # Each verification goes through all layers, of which only two are ever in memory.
                assert line.kv_end["reread"] >= len(line.committed) * line.kv_start["full"] / LAYERS  # type: ignore[index]


def test_a_level_that_is_ahead_of_the_others_is_named(tiny_runs: TinyRuns) -> None:
    """Outputs stay right whatever lower levels do, so that only the counts can show it."""
    result = check_loaded(tiny_runs("middle_level_keeps_one_too_many"))
    details = [verdict.detail for verdict in result.verdicts if verdict.verdict is Verdict.MISSING]
    assert len(details) > REQUESTS / 2
    assert all("same tokens, but levels end with different numbers of tokens" in detail for detail in details)


def test_a_level_that_never_drafts_is_not_at_work(tiny_runs: TinyRuns) -> None:
    result = check_loaded(tiny_runs("lowest_level_never_drafts"))
    failed = {guard.name for cell in result.cells if len(cell.cell.levels) > 1 for guard in cell.vacuous}
    assert failed == {"levels_drafted"}


def test_positions_from_the_kept_length_are_a_violation_and_no_tie(tiny_runs: TinyRuns) -> None:
    result = check_loaded(tiny_runs("position_from_kept_length"))
    dropping = next(cell for cell in result.cells if cell.cell.compressor == "snapkv")
    assert dropping.counts[Verdict.VIOLATION] > len(dropping.verdicts) / 2


def test_a_fault_never_shares_a_cell_with_the_sound_engine(tiny_runs: TinyRuns) -> None:
    sound, broken = tiny_runs(None), tiny_runs("drop_last_request")
    assert not {cell.id for cell in sound.cells} & {cell.id for cell in broken.cells}
    assert broken.provenance["injected_fault"] == "drop_last_request"


def test_a_fault_that_could_not_show_is_refused() -> None:
    config = tiny_run()
    dropping_only = replace(config, cells=config.cells[:2], tasks=config.tasks[:1])
    assert "it needs a method that can quantise" in fault_obstacle(dropping_only, "residual_never_quantised")
    assert "no task has a penalty" in fault_obstacle(dropping_only, "penalty_ignores_same_round")
    assert "no task draws its tokens" in fault_obstacle(dropping_only, "noise_by_draft_index")
    assert "it needs a method that can none" not in fault_obstacle(dropping_only, "stale_draft_entries")
    assert not fault_obstacle(dropping_only, "position_from_kept_length")
    assert "no cell has two levels" in fault_obstacle(dropping_only, "lowest_level_never_drafts")
    alone = replace(config, engine=replace(config.engine, batch_size=1))
    assert "no two requests are decoded together" in fault_obstacle(alone, "request_released_too_early")
    nothing = replace(config, cells=(CellConfig(arm="full"),))
    with pytest.raises(UsageError, match="no cell drafts and verifies"):
        run_for_gate(nothing, fault="nan_accepts_all", console=Console(file=io.StringIO()))
    with pytest.raises(UsageError, match="did you mean 'nan_accepts_all'"):
        find_fault("nan_accept_all")


def test_every_fault_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lossless.md").read_text("utf-8")
    for name in FAULTS:
        assert f"`{name}`" in page, name
