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
from vcbench.lossless.check import check_loaded
from vcbench.lossless.faults import FAULTS, find_fault
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.result import Verdict

EXPECTED = {
    "position_from_kept_length": Verdict.VIOLATION,
    "no_rollback_of_last_draft": Verdict.VIOLATION,
    "eos_only_checked_at_block_end": Verdict.STOP_MISMATCH,
    "cap_before_stop": Verdict.STOP_MISMATCH,
    "nan_accepts_all": Verdict.VIOLATION,
    "penalty_ignores_same_round": Verdict.VIOLATION,
    "compressed_cache_in_verify": Verdict.VIOLATION,
    "drop_last_request": Verdict.MISSING,
    "wrong_model_records": Verdict.VIOLATION,
}


def failed_guards(result: CheckResult) -> set[str]:
    return {guard.name for cell in result.cells for guard in cell.vacuous}


def test_a_sound_engine_passes(tiny_runs: TinyRuns) -> None:
    result = check_loaded(tiny_runs(None))
    assert (result.outcome, result.level, result.n) == ("PASS", "bitwise", 32)
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
    assert {"cache_class", "smaller_cache"} <= failed_guards(check_loaded(tiny_runs("cache_silently_replaced")))
    assert failed_guards(check_loaded(tiny_runs("residual_never_quantised"))) == {"drafts_rejected", "smaller_cache"}


def test_positions_from_the_kept_length_are_a_violation_and_no_tie(tiny_runs: TinyRuns) -> None:
    result = check_loaded(tiny_runs("position_from_kept_length"))
    dropping = next(cell for cell in result.cells if cell.cell.compressor == "snapkv")
    assert dropping.counts[Verdict.VIOLATION] > len(dropping.verdicts) / 2


def test_a_fault_never_shares_a_cell_with_the_sound_engine(tiny_runs: TinyRuns) -> None:
    sound, broken = tiny_runs(None), tiny_runs("drop_last_request")
    assert not {cell.id for cell in sound.cells} & {cell.id for cell in broken.cells}
    assert broken.provenance["injected_fault"] == "drop_last_request"


def test_a_fault_that_could_not_show_is_refused() -> None:
    config = tiny_run(None)
    dropping_only = replace(config, cells=config.cells[:2])
    assert "it needs a method that can quantise" in fault_obstacle(dropping_only, "residual_never_quantised")
    assert "no task has a penalty" in fault_obstacle(config, "penalty_ignores_same_round")
    assert not fault_obstacle(dropping_only, "position_from_kept_length")
    nothing = replace(config, cells=(CellConfig(arm="full"),))
    with pytest.raises(UsageError, match="no cell drafts and verifies"):
        run_for_gate(nothing, fault="nan_accepts_all", console=Console(file=io.StringIO()))
    with pytest.raises(UsageError, match="did you mean 'nan_accepts_all'"):
        find_fault("nan_accept_all")


def test_every_fault_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lossless.md").read_text("utf-8")
    for name in FAULTS:
        assert f"`{name}`" in page, name
