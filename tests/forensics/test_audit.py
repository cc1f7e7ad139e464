"""The audit on a real model: a reference that is audited falls short by nothing, and a wrong token is found."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.lossless.conftest import TinyRuns
from tests.lossless.test_outputs import write
from vcbench.config.sampling import Sampling
from vcbench.errors import ModelError, UsageError
from vcbench.forensics.audit import audit
from vcbench.forensics.faulty import Engine
from vcbench.forensics.tiny import CELLS, PENALISED, SEED, tiny_config
from vcbench.lossless.check import check_loaded
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.pairs import check_files
from vcbench.lossless.result import Verdict
from vcbench.models.tiny import tiny_model
from vcbench.records.reader import Run, load_run
from vcbench.runners.run import execute

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


def sampled_run(tmp_path: Path, sampling: Sampling, fault: str | None = None) -> Run:
    config = replace(tiny_config("drawn", requests=4, cells=CELLS[:2], sampling=sampling), output_dir=str(tmp_path))
    return load_run(execute(config, console=QUIET, engine=Engine(fault), fault=fault))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.8),
        Sampling(temperature=1.2, top_k=12, top_p=0.9, min_p=0.02, seed=5),
        Sampling(repetition_penalty=1.5, presence_penalty=0.4, logit_bias={42: -3.0}, min_tokens=6),
        Sampling(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.2, top_k=20),
    ],
    ids=["drawn", "filtered", "penalised", "both"],
)
def test_drawn_outputs_are_replayed(tmp_path: Path, tiny_place: Path, sampling: Sampling) -> None:
    """Noise, filters and penalties again, from the records and the model alone: every token is the one it takes."""
    result = audit(check_loaded(sampled_run(tmp_path, sampling)), str(tiny_model(SEED)), console=QUIET)
    assert result.outcome == "PASS"
    assert result.audit is not None
    assert (result.audit.tau_steps, result.audit.requests) == (0.0, 4)
    assert {verdict.shortfall_steps for verdict in result.verdicts} == {0.0}


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.8, top_k=30), PENALISED], ids=["drawn", "penalised"])
def test_a_leak_into_drawn_outputs_is_a_violation(tmp_path: Path, tiny_place: Path, sampling: Sampling) -> None:
    run = sampled_run(tmp_path, sampling, "compressed_cache_in_verify")
    result = audit(check_loaded(run), str(tiny_model(SEED)), console=QUIET)
    assert result.outcome == "FAIL"
    assert result.audit is not None
    assert result.audit.tau_steps == 0.0
    forks = [v for v in result.verdicts if v.step is not None]
    assert {v.verdict for v in forks} == {Verdict.VIOLATION}
    worst = [v.shortfall_steps for v in forks]
    assert max(steps or 0.0 for steps in worst) > 1000
    assert all(steps is not None and steps > 0 for steps in worst)


def test_a_wrong_seed_is_too_coarse_to_decide(tmp_path: Path, tiny_place: Path) -> None:
    """Files that state another seed than they were drawn with: the reference falls short of itself."""
    run = sampled_run(tmp_path, Sampling(temperature=0.8, seed=1))
    sampler = {"temperature": 0.8, "seed": 1, "noise": "vcbench"}

    def files(seed: int) -> CheckResult:
        a, b = (
            write(tmp_path / f"{name}{seed}.jsonl", header(run, sampler=sampler | {"seed": seed}), outputs(run))
            for name in "ab"
        )
        return audit(check_files(a, b), str(tiny_model(SEED)), console=QUIET)

    assert files(1).outcome == "PASS"
    assert (files(2).outcome, files(2).exit_code) == ("INCONCLUSIVE", 2)


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        ({"temperature": 0.7, "seed": 1}, "were drawn with temperature 0.7 and noise that the audit cannot replay"),
        ({"temperature": 0.7, "noise": "vcbench"}, "it needs the seed"),
        ({"temperature": 0, "typical_p": 0.9}, "does not know the sampler setting 'typical_p'"),
        ({"temperature": "hot"}, "sampler setting 'temperature' of a.jsonl is 'hot'; it must be a number"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    tmp_path: Path, tiny_runs: TinyRuns, tiny_place: Path, sampler: dict[str, Any], says: str
) -> None:
    stated = header(tiny_runs(None), sampler=sampler)
    a, b = (write(tmp_path / name, stated, outputs(tiny_runs(None))) for name in ("a.jsonl", "b.jsonl"))
    with pytest.raises(UsageError, match=re.escape(says)):
        audit(check_files(a, b), str(tiny_model(SEED)), console=QUIET)


def test_a_model_that_is_not_here_is_an_error(tmp_path: Path, tiny_runs: TinyRuns) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        audit(check_loaded(tiny_runs(None)), str(tmp_path / "nothing"), console=QUIET)
