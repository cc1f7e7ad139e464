"""A run that needs a calibration is refused in the plan without it, and is another run with another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from tests.calibration.tiny import lettered_model
from vcbench.backends.bundled.calibrations import calibrate_model
from vcbench.calibration.store import load_calibration
from vcbench.cli.main import app
from vcbench.compressors.kvquant import KVQuantOptions
from vcbench.config.load import dump_config
from vcbench.config.schema import CellConfig, MethodConfig, ModelConfig, RunConfig
from vcbench.engine.environment import set_threads
from vcbench.errors import CalibrationError, ConfigError, RecordError, UsageError
from vcbench.forensics.replay import Replay
from vcbench.forensics.tiny import tiny_config
from vcbench.records.reader import load_run
from vcbench.runners.run import execute
from vcbench.runners.setup import prepare

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs\n" * 60
CELLS = (
    CellConfig(arm="full"),
    CellConfig(arm="lossy", method="kvq"),
    CellConfig(arm="vericache", method="kvq", draft_length=6),
    CellConfig(arm="vericache", method="kvz", draft_length=6),
)
METHODS = {
    "kvq": MethodConfig(compressor="kvquant", options={"bits": 2}),
    "kvz": MethodConfig(compressor="kvzap", options={"factor": 3.0, "window": 16}),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And one thread, since waking a second one takes longer than the work."""
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    set_threads(1)
    yield
    set_threads(before)


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    return ModelConfig(id=str(lettered_model(tmp_path)), dtype="float32", device="cpu")


@pytest.fixture
def config(tmp_path: Path, model: ModelConfig) -> RunConfig:
    made = tiny_config("fitted", requests=2, cells=CELLS, methods=METHODS)
    return replace(made, model=model, output_dir=str(tmp_path / "runs"), tasks=(replace(made.tasks[0], max_tokens=16),))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def calibrate(model: ModelConfig, compressor: str, text: Path, **changed: Any) -> Path:
    asked: dict[str, Any] = {"text": [text], "samples": 4, "sample_tokens": 128, **changed}
    return calibrate_model(model, compressor, asked.pop("options", {}), **asked)[1]


def quiet() -> Console:
    return Console(quiet=True)


def test_a_missing_calibration_is_refused_in_the_plan(config: RunConfig) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(config)
    problems = [str(problem) for problem in refused.value.problems]

    assert len(problems) == 2
    assert problems[0].startswith("methods.kvq: kvquant is not calibrated")
    assert f"run: vcbench calibrate {config.model.id} kvquant" in problems[0]
    assert "kvzap is not calibrated" in problems[1]


def test_so_it_is_in_a_dry_run(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(dump_config(config))
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "run.yaml"), "--dry-run"])

    assert shown.exit_code == 0
    assert "vcbench calibrate" in shown.stderr
    assert "kvquant" in shown.stderr


def test_a_method_that_no_cell_uses_needs_nothing(config: RunConfig) -> None:
    bench = prepare(replace(config, cells=CELLS[:1]))

    assert [(cell.label, cell.levels) for cell in bench.plan.cells] == [("full", ())]
    assert set(bench.config.methods) == set(METHODS)


@pytest.mark.acceptance("A-GEN-3")
def test_fitted_methods_run_and_are_lossless(config: RunConfig, model: ModelConfig, text: Path) -> None:
    """A-GEN-3 for both, and what the records say of the fit."""
    paths = {name: calibrate(model, name, text) for name in ("kvquant", "kvzap")}
    run = load_run(execute(config, console=quiet()))
    answers = {
        cell.label: [line.token_ids for line in run.requests_of(cell, config.tasks[0].name)] for cell in run.cells
    }

    assert len(answers["full"]) == 2
    assert answers["vericache kvq k=6"] == answers["vericache kvz k=6"] == answers["full"]
    for cell in run.provenance["cells"]:
        if cell["compressor"] is None:
            assert "calibration" not in cell
            continue
        stored = load_calibration(paths[cell["compressor"]])
        assert cell["calibration"] == {"sha256": stored.sha256, "data": stored.facts["data"]}
        assert stored.facts["data"]["source"] == ["text.txt"]


def test_another_fit_makes_other_cells_and_the_same_one_does_not(
    config: RunConfig, model: ModelConfig, text: Path, tmp_path: Path
) -> None:
    def ids(changed: RunConfig) -> list[str]:
        return [cell.id for cell in prepare(changed).plan.cells]

    only = replace(config, cells=CELLS[:2])
    calibrate(model, "kvquant", text)
    first = ids(only)
    elsewhere = tmp_path / "mine.safetensors"
    calibrate(model, "kvquant", text, output=elsewhere)
    options = asdict(KVQuantOptions(bits=2, calibration=str(elsewhere)))
    named = MethodConfig(compressor="kvquant", options=options)
    assert ids(replace(only, methods={"kvq": named})) == first

    calibrate(model, "kvquant", text, samples=3)
    second = ids(only)
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_a_replay_needs_the_fit_of_the_records(config: RunConfig, model: ModelConfig, text: Path) -> None:
    calibrate(model, "kvquant", text)
    run = load_run(execute(replace(config, cells=CELLS[:2]), console=quiet()))
    Replay.of(run)
    calibrate(model, "kvquant", text, samples=3)
    with pytest.raises(RecordError, match="another calibration of kvq than is here"):
        Replay.of(run)


def test_a_fit_of_another_model_is_refused(config: RunConfig, model: ModelConfig, text: Path, tmp_path: Path) -> None:
    other = replace(model, id=str(lettered_model(tmp_path, seed=4)))
    path = calibrate(other, "kvquant", text, output=tmp_path / "other.safetensors")
    method = MethodConfig(compressor="kvquant", options={"bits": 2, "calibration": str(path)})
    with pytest.raises(ConfigError, match="was fitted on other weights"):
        prepare(replace(config, cells=CELLS[:2], methods={"kvq": method}))


def test_fitting_again_gives_the_same(model: ModelConfig, text: Path) -> None:
    for name, options in (("kvquant", {}), ("kvzap", {"surrogate": "mlp"})):
        first = load_calibration(calibrate(model, name, text, options=options))
        assert load_calibration(calibrate(model, name, text, options=options)) == first


def test_what_cannot_be_fitted_is_refused(model: ModelConfig, text: Path) -> None:
    with pytest.raises(UsageError, match="snapkv under these options uses no calibration"):
        calibrate(model, "snapkv", text)
    with pytest.raises(UsageError, match="uses no calibration"):
        calibrate(model, "kvquant", text, options={"codebook": "nf"})
    with pytest.raises(UsageError, match="unknown compressor 'kvqant'; did you mean 'kvquant'"):
        calibrate(model, "kvqant", text)
    with pytest.raises(CalibrationError, match="name more text with --text"):
        calibrate(model, "kvquant", text, samples=400)


def test_the_command(model: ModelConfig, text: Path, tmp_path: Path) -> None:
    words = ["calibrate", model.id, "kvzap", "--text", str(text), "--samples=4", "--sample-tokens=128", "--device=cpu"]
    shown = CliRunner().invoke(app, [*words, "--set=surrogate=mlp", "--json"], catch_exceptions=False)
    document = json.loads(shown.stdout)
    stored = load_calibration(Path(document["path"]))

    assert shown.exit_code == 0
    assert document["sha256"] == stored.sha256
    assert document["settings"] == {"surrogate": "mlp"}
    assert document["bytes"] == sum(tensor.nbytes for tensor in stored.tensors.values())
    assert -1 <= document["spearman"] <= 1
    assert Path(document["path"]).is_relative_to(tmp_path / "cache")

    shown = CliRunner().invoke(app, [*words, "--output", str(tmp_path / "here.safetensors")], catch_exceptions=False)
    assert (tmp_path / "here.safetensors").is_file()
    assert "spearman" in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set=surrogate=cubic"], "surrogate"),
        (["--set=surogate=mlp"], "did you mean 'surrogate'"),
        (["--set=surrogate"], "not of the form"),
        (["--set=window=-1"], "window is -1"),
    ],
)
def test_the_commands_options_are_checked(model: ModelConfig, words: list[str], message: str) -> None:
    shown = CliRunner().invoke(app, ["calibrate", model.id, "kvzap", *words])
    assert isinstance(shown.exception, ConfigError)
    assert message in str(shown.exception)


def test_a_fit_that_cannot_be_stored_is_refused_before_it_is_made(
    model: ModelConfig, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vcbench.compressors.kvquant.KVQuant.calibrate", None)
    with pytest.raises(CalibrationError, match="Is a directory"):
        calibrate(model, "kvquant", text, output=tmp_path)


def test_pieces_that_the_model_cannot_read_are_refused(model: ModelConfig, text: Path) -> None:
    with pytest.raises(CalibrationError, match=r"reads 512 tokens at most, and pieces of 513 .* lower --sample-"):
        calibrate(model, "kvquant", text, sample_tokens=513, samples=1)


def test_the_option_calibration_says_where_it_is_stored(model: ModelConfig, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    assert calibrate(model, "rotatekv", text, options={"calibration": str(file)}) == file
    assert load_calibration(file).method == "rotatekv"


def test_samples_that_the_fit_saw_are_not_called_held_out(model: ModelConfig, text: Path) -> None:
    measured = {
        count: load_calibration(calibrate(model, "kvzap", text, samples=count, sample_tokens=64)).facts["measured"]
        for count in (1, 3, 4)
    }
    assert {count: found["held_out_samples"] for count, found in measured.items()} == {1: 0, 3: 0, 4: 1}
