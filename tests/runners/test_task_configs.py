"""configs/tasks.yaml: every task, prompts to scores, on a tiny model that reads the embedded model's tokens."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.models.conftest import embedded_model
from vcbench import registry
from vcbench.config.load import load_config
from vcbench.config.schema import ModelConfig, RunConfig
from vcbench.models.hf_config import parse_architecture
from vcbench.models.store import ModelFiles
from vcbench.models.tiny import CONFIG, tiny_weights
from vcbench.records.reader import load_run
from vcbench.runners.run import execute
from vcbench.scoring.document import score_and_write
from vcbench.scoring.export import export

__all__ = ["embedded_model"]
CONFIGS = Path(__file__).parents[2] / "configs"
TOKENS = 12


@pytest.fixture
def tiny(embedded_model: ModelFiles, tmp_path: Path) -> ModelConfig:
    """Tiny random weights behind the embedded model's tokenizer and chat template."""
    from safetensors.torch import save_file

    source = embedded_model.path
    config = CONFIG | {"vocab_size": embedded_model.architecture.vocab_size, "max_position_embeddings": 8192}
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(source / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tiny_weights(parse_architecture(config), 1), directory / "model.safetensors")
    return ModelConfig(id=str(directory), dtype="float32", device="cpu")


def small(config: RunConfig, model: ModelConfig, path: Path) -> RunConfig:
    tasks = tuple(replace(task, max_tokens=min(task.max_tokens, TOKENS)) for task in config.tasks)
    return replace(config, model=model, tasks=tasks, output_dir=str(path))


def test_every_task_is_in_the_configuration() -> None:
    config = load_config(CONFIGS / "tasks.yaml")
    assert {task.name for task in config.tasks} == set(registry.names("task"))


@pytest.mark.model
def test_every_task_from_prompts_to_scores(tiny: ModelConfig, tmp_path: Path) -> None:
    config = small(load_config(CONFIGS / "tasks.yaml"), tiny, tmp_path / "runs")
    path = execute(config, console=Console(quiet=True))
    run, scores = load_run(path), score_and_write(load_run(path))
    assert run.complete
    assert [task.task for task in scores.tasks] == [task.name for task in config.tasks]
    for task in scores.tasks:
        assert list(task.errors()) == [], task.task
        full, lossy, veri = task.cells
        assert all(task.failed[cell.id] == 0 for cell in task.cells)
        for section in task.sections:
            for metric in section.metrics:
                figures = {cell.arm: task.figure(section, metric, cell) for cell in (full, lossy, veri)}
                if section.paired and figures["full"].n:
                    # VeriCache's answers are full KV's, and so is every figure of them.
                    found = figures["vericache"].difference
                    assert found is not None
                    assert found.changed == 0, (task.task, metric.name)
    written = {file.relative_to(tmp_path / "out").parts[0] for file in export(run, tmp_path / "out", run.tasks)}
    assert "swebench-lite" in written


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_valid_and_named_after_its_file(path: Path) -> None:
    assert load_config(path).name == path.stem
