"""The audit on a real model: a reference that is audited falls short by nothing, and a wrong token is found."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.lossless.conftest import TinyRuns
from tests.lossless.test_outputs import write
from vcbench.errors import ModelError, UsageError
from vcbench.lossless.check import check_loaded
from vcbench.lossless.pairs import check_files
from vcbench.lossless.result import CheckResult, Verdict
from vcbench.models.tiny import tiny_model
from vcbench.records.reader import Run
from vcbench.runners.audit import audit
from vcbench.runners.tiny import SEED

QUIET = Console(file=io.StringIO())


def header(run: Run, **changes: Any) -> dict[str, Any]:
    model = run.provenance["model"]
    stated = {
        "kind": "outputs", "schema": 1, "model": "tiny", "tokenizer": model["tokenizer_sha256"],
        "weights_sha256": model["weights_sha256"], "vocab_size": model["vocab_size"], "dtype": "float32",
        "max_tokens": 46, "stop_ids": model["stop_ids"], "stop_strings": [], "sampler": {"temperature": 0},
    }  # fmt: skip
    return stated | changes


def outputs(run: Run, change: Any = None) -> list[dict[str, Any]]:
    """Full KV's answers as another engine would have written them."""
    rows = []
    for line in run.requests_of(run.cells[0], "trace"):
        prompt = run.prompts["trace", line.request]
        rows.append(
            {
                "kind": "output", "schema": 1, "request": line.request, "prompt_ids": prompt.prompt_ids,
                "output_ids": list(line.token_ids), "finish_reason": line.finish_reason,
            }
        )  # fmt: skip
    if change is not None:
        change(rows)
    return rows


def pair(tmp_path: Path, run: Run, change: Any) -> CheckResult:
    a = write(tmp_path / "a.jsonl", header(run), outputs(run))
    return check_files(a, write(tmp_path / "b.jsonl", header(run), outputs(run, change)))


def test_a_sound_run_falls_short_by_nothing(tiny_runs: TinyRuns, tiny_place: Path) -> None:
    result = audit(check_loaded(tiny_runs(None)), str(tiny_model(SEED)), console=QUIET)
    assert result.outcome == "PASS"
    assert result.audit is not None
    assert (result.audit.tau_steps, result.audit.requests) == (0.0, 32)
    assert {verdict.shortfall_steps for verdict in result.verdicts} == {0.0}


def test_a_wrong_token_is_a_violation_with_its_distance(tmp_path: Path, tiny_runs: TinyRuns, tiny_place: Path) -> None:
    def spoil(rows: list[dict[str, Any]]) -> None:
        rows[0]["output_ids"][5] = 40

    unaudited = pair(tmp_path, tiny_runs(None), spoil)
    assert unaudited.outcome == "INCONCLUSIVE"
    result = audit(unaudited, str(tiny_model(SEED)), console=QUIET)
    assert result.outcome == "FAIL"
    verdict = result.verdicts[0]
    assert verdict.verdict is Verdict.VIOLATION
    assert verdict.shortfall_steps is not None
    assert verdict.shortfall_steps > 1000
    card = result.cards[0]
    assert card.reference.gap is not None
    assert card.reference.gap > 0
    assert len(card.reference.top) == 5


def test_faulty_runs_stay_red(tiny_runs: TinyRuns, tiny_place: Path) -> None:
    for fault in ("compressed_cache_in_verify", "wrong_model_records"):
        result = audit(check_loaded(tiny_runs(fault)), str(tiny_model(SEED)), console=QUIET)
        assert result.outcome == "FAIL"
        assert Verdict.VIOLATION in {verdict.verdict for verdict in result.verdicts}
        assert not {verdict.verdict for verdict in result.verdicts} & {Verdict.TIE_EXACT, Verdict.TIE_NEAR}


def test_both_arms_of_another_model_are_found(tmp_path: Path, tiny_runs: TinyRuns, tiny_place: Path) -> None:
    """The two agree with one another; only the reference shows that neither is its own."""
    run = tiny_runs(None)
    unstated = {key: value for key, value in header(run).items() if key != "weights_sha256"}
    a = write(tmp_path / "a.jsonl", unstated, outputs(run))
    b = write(tmp_path / "b.jsonl", unstated, outputs(run))
    assert check_files(a, b).outcome == "PASS"
    result = audit(check_files(a, b), str(tiny_model(SEED + 1)), console=QUIET)
    assert (result.outcome, result.exit_code) == ("INCONCLUSIVE", 2)


def test_a_model_that_the_records_contradict_is_not_comparable(tiny_runs: TinyRuns, tiny_place: Path) -> None:
    result = audit(check_loaded(tiny_runs(None)), str(tiny_model(SEED + 1)), console=QUIET)
    assert (result.outcome, result.exit_code) == ("NOT_COMPARABLE", 3)
    assert "weights_sha256" in result.differences[0]


def test_sampled_outputs_are_refused(tmp_path: Path, tiny_runs: TinyRuns, tiny_place: Path) -> None:
    with pytest.raises(UsageError, match=r"were chosen with repetition_penalty"):
        audit(check_loaded(tiny_runs("penalty_ignores_same_round")), str(tiny_model(SEED)), console=QUIET)
    run = tiny_runs(None)
    sampled = header(run, sampler={"temperature": 0.7, "seed": 1})
    a, b = (write(tmp_path / name, sampled, outputs(run)) for name in ("a.jsonl", "b.jsonl"))
    with pytest.raises(UsageError, match=r"were chosen with temperature"):
        audit(check_files(a, b), str(tiny_model(SEED)), console=QUIET)


def test_a_model_that_is_not_here_is_an_error(tmp_path: Path, tiny_runs: TinyRuns) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        audit(check_loaded(tiny_runs(None)), str(tmp_path / "nothing"), console=QUIET)
