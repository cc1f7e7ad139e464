"""`vcbench run --dry-run` plans without weights and writes nothing; each shipped configuration can be planned."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vcbench import registry
from vcbench.cli.main import app
from vcbench.config.load import load_config
from vcbench.errors import ConfigError, UsageError
from vcbench.models.catalog import known_architecture
from vcbench.models.shapes import parameter_count
from vcbench.runners.expected import expected_prompts

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
TEXT = """\
name: trial
model: {id: smollm2-135m}
tasks: [{name: stdlib, limit: 2, max_tokens: 16}]
methods: {snap: {compressor: snapkv, factor: 4}}
cells:
  - arm: full
  - {arm: lossy, method: snap}
  - {arm: vericache, method: snap}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with `run.yaml`, on a machine without any model."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "120")
    (work / "run.yaml").write_text(TEXT)
    return work


def _plan(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run", "--json", *words], catch_exceptions=False)
    assert done.exit_code == 0
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def test_json(here: Path) -> None:
    plan = _plan("--name", "other", "--set", "tasks.0.limit=3")
    assert plan["name"] == "other"
    assert plan["model"] == "smollm2-135m"
    assert not plan["prompts_tokenised"]
    assert [cell["label"] for cell in plan["cells"]] == ["full", "lossy snap", "vericache snap k=25"]
    full, lossy, vericache = plan["cells"]
    assert full["prompts"] == 3
    assert full["id"] is None
    assert full["draft_bytes"] is None
    assert lossy["draft_bytes"] < lossy["full_bytes"] / 3
    assert vericache["decode_s"] > 0
    assert list(here.iterdir()) == [here / "run.yaml"]


def test_table_and_remarks(here: Path) -> None:
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "plan of trial (estimates)" in done.stdout
    assert re.search(r"stdlib: 2 prompts, 3,\d\d\d tokens, up to 16 new each", done.stdout)
    assert re.search(r"vericache snap k=25 +\d+\.\d MiB +\d+\.\d s", done.stdout)
    assert "estimate for" in done.stderr
    assert "stdlib: prompts are roughly counted" in done.stderr
    assert "to be fetched first:\n  vcbench model fetch smollm2-135m\n" in done.stderr
    assert done.stderr.endswith("next: vcbench model fetch smollm2-135m\n")
    assert list(here.iterdir()) == [here / "run.yaml"]


def test_conversations_are_said_not_to_be_counted(here: Path) -> None:
    text = TEXT.replace("{name: stdlib, ", "{name: complexfuncbench, mode: interactive, ")
    (here / "run.yaml").write_text(text)
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run"], catch_exceptions=False)
    assert "not counted: further turns of complexfuncbench, which depend on the answers" in done.output


def test_a_device_that_is_not_here_is_planned_for_one_that_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (here / "run.yaml").write_text(TEXT.replace("{id: smollm2-135m}", "{id: smollm2-135m, device: cuda}"))
    plan = _plan()
    assert (plan["device"], plan["dtype"], plan["gpu"]) == ("cuda", "bfloat16", "H100 80GB SXM")
    assert plan["cells"][0]["full_bytes"] > 0
    assert _plan("--gpu", "a100")["total_s"] > plan["total_s"] > _plan("--gpu", "H200")["total_s"]
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run"], catch_exceptions=False)
    assert "on an H100 80GB SXM: 75% of its 3.35 TB/s and 50% of its 989 TFLOP/s" in done.stderr
    assert "an estimate, not a measurement" in done.stderr
    assert "no cuda device is here: the run itself would be refused" in done.stderr


def test_times_on_a_gpu_follow_from_its_data_sheet(here: Path) -> None:
    """A step of full KV reads weights and caches once: their bytes over three quarters of the bandwidth."""
    plan = _plan("--gpu", "H100")
    full = plan["cells"][0]
    architecture = known_architecture("smollm2-135m")
    assert architecture is not None
    per_token = architecture.kv_bytes_per_token(2)
    read = [plan["weights_bytes"] + per_token * (tokens + 8) for tokens in _lengths(here)]
    assert full["decode_s"] == pytest.approx(16 * sum(read) / (0.75 * 3.35e12))
    assert plan["weights_bytes"] == 2 * parameter_count(architecture)


def _lengths(here: Path) -> list[int]:
    config = load_config(here / "run.yaml")
    return list(expected_prompts(config, config.tasks[0], None, 8192).lengths)


def test_a_gpu_nobody_knows_is_named_with_the_known_ones(here: Path) -> None:
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run", "--gpu", "H20x"])
    assert isinstance(done.exception, UsageError)
    assert "'H20x'" in str(done.exception)
    assert "H200" in str(done.exception)
    done = CliRunner().invoke(app, ["run", "run.yaml", "--gpu", "H100"])
    assert isinstance(done.exception, UsageError)


def test_a_batch_that_does_not_fit_is_said(here: Path) -> None:
    (here / "run.yaml").write_text(TEXT.replace("smollm2-135m", "meta-llama/Llama-3.3-70B-Instruct"))
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run", "--gpu", "H100"], catch_exceptions=False)
    assert "! that is more than the 74.5 GiB of an H100 80GB SXM" in done.stderr


def test_prompts_that_cannot_be_asked_are_said(here: Path) -> None:
    (here / "run.yaml").write_text(
        TEXT.replace("name: stdlib, limit: 2, max_tokens: 16", "name: needle, lengths: [1000, 9000], max_tokens: 16")
    )
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run"], catch_exceptions=False)
    assert "note: task needle: 5 of 10 rows excluded" in done.stderr
    assert "exceed the model's context of 8192, so it is not asked" in done.stderr


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_explained_without_weights_data_or_network(
    path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a plan needs no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    done = CliRunner().invoke(app, ["run", str(path), "--dry-run", "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    plan = json.loads(done.stdout)
    assert plan["total_s"] > 0
    assert all(cell["full_bytes"] > 0 and cell["decode_s"] > 0 for cell in plan["cells"])
    assert plan["absent"][0] == f"vcbench model fetch {plan['model']}"
    config = load_config(path)
    named = [task.options.get("dataset") for task in config.tasks]
    for dataset in filter(None, named):
        assert f"hf download --repo-type dataset {dataset}" in plan["absent"]


MISSION = {"stdlib", "needle", "swebench-lite", "complexfuncbench", "longform", "gsm8k-long"}
SEVEN = {"kvzip", "kvzap", "expected-attention", "snapkv", "kivi", "kvquant", "rotatekv"}


@pytest.mark.parametrize("name", ["qwen3-coder", "mistral-24b", "qwen-32b", "llama-70b"])
def test_the_missions_evaluations_and_the_papers_methods_are_configured(name: str, here: Path) -> None:
    path = next(path for path in CONFIGS if path.stem == name)
    config = load_config(path, architecture_of=known_architecture)
    assert {task.name for task in config.tasks} == MISSION
    for arm in ("lossy", "vericache"):
        cells = [cell for cell in config.cells if cell.arm == arm]
        used = {config.methods[cell.method or ""].compressor for cell in cells}
        assert used - {"turboquant"} == SEVEN
    by_method = {cell.method: cell for cell in config.cells if cell.arm == "vericache"}
    assert config.methods["kvzip-5x"].options["keep"] == 0.2
    assert by_method["kvzip-5x"].draft_length == 25
    assert by_method["kivi-4bit"].draft_length == 40
    done = CliRunner().invoke(app, ["run", str(path), "--dry-run", "--json"], catch_exceptions=False)
    plan = json.loads(done.stdout)
    if name != "llama-70b":
        assert plan["weights_bytes"] + plan["cache_bytes"] <= plan["memory_bytes"]
    for task in MISSION:
        assert sum(cell["decode_s"] for cell in plan["cells"] if cell["task"] == task) < 8 * 3600


def test_impossible_cells_come_with_the_other_problems(here: Path) -> None:
    (here / "run.yaml").write_text(TEXT.replace("max_tokens: 16", "max_tokens: 8192").replace("name: trial", "nam: x"))
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run"])
    assert isinstance(done.exception, ConfigError)
    found = [str(problem) for problem in done.exception.problems]
    assert any(line.startswith("run.yaml:3: max_tokens 8192 leaves no room") for line in found)
    assert any(line.startswith("run.yaml:1: unknown key `nam`") for line in found)


@pytest.mark.model
def test_prompts_of_a_model_that_is_here_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vcbench.models.store import find_installed

    if find_installed("smollm2-135m") is None:
        pytest.skip("needs the embedded model: vcbench model fetch smollm2-135m")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(TEXT)
    plan = _plan()
    assert plan["prompts_tokenised"]
    assert 2000 < plan["cells"][0]["prompt_tokens"] < 8192
    assert len({cell["id"] for cell in plan["cells"]}) == 3
    assert plan["cells"][0]["id"] == _plan("--set", "engine.batch_size=2")["cells"][0]["id"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_load(path: Path) -> None:
    wanted = set(re.findall(r"compressor: (\w+)", path.read_text()))
    missing = sorted(wanted - set(registry.names("compressor")))
    if missing:
        pytest.skip(f"not registered yet: {', '.join(missing)}")
    config = load_config(path, architecture_of=known_architecture)
    assert config.name == path.stem
    assert known_architecture(config.model.id) is not None
    assert {cell.arm for cell in config.cells} == {"full", "lossy", "vericache"}


def test_there_are_configurations() -> None:
    assert {path.stem for path in CONFIGS} >= {"quickstart", "qwen3-coder", "mistral-24b", "qwen-32b", "llama-70b"}
