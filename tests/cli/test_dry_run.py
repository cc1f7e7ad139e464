"""`vcbench run --dry-run` plans without weights and writes nothing; each shipped configuration can be planned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vcbench import registry
from vcbench.cli.main import app
from vcbench.config.load import load_config
from vcbench.errors import ConfigError
from vcbench.models.catalog import known_architecture

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
    assert re.search(r"stdlib +vericache snap k=25 +2 +8192", done.stdout)
    assert "estimate for" in done.stderr
    assert "the prompts are not tokenised yet" in done.stderr
    assert "vcbench model fetch smollm2-135m" in done.stderr
    assert "next: vcbench run run.yaml" in done.stderr
    assert list(here.iterdir()) == [here / "run.yaml"]


def test_conversations_are_said_not_to_be_counted(here: Path) -> None:
    text = TEXT.replace("{name: stdlib, ", "{name: complexfuncbench, mode: interactive, ")
    (here / "run.yaml").write_text(text)
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run"], catch_exceptions=False)
    assert "not counted: further turns of complexfuncbench, which depend on the answers" in done.output


def test_a_device_that_is_not_here_is_planned_without_times(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (here / "run.yaml").write_text(TEXT.replace("{id: smollm2-135m}", "{id: smollm2-135m, device: cuda}"))
    plan = _plan()
    assert (plan["device"], plan["dtype"], plan["total_s"]) == ("cuda", "bfloat16", None)
    assert plan["cells"][0]["full_bytes"] > 0
    done = CliRunner().invoke(app, ["run", "run.yaml", "--dry-run"], catch_exceptions=False)
    assert "no cuda device is here, so no times" in done.stderr


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
