"""What ran is recorded: the row tiles that the probe chose, and the probe; and a run does not go on under others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from vcbench.backends.bundled import backend as bundled
from vcbench.config.schema import CellConfig, RunConfig
from vcbench.engine.model.linear import PROBE_ROWS, PROBE_TILES
from vcbench.errors import RecordError
from vcbench.forensics.tiny import tiny_config
from vcbench.records.reader import load_run
from vcbench.runners.run import execute

QUIET = Console(quiet=True)


@pytest.fixture
def config(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    made = tiny_config("tiles", requests=1, cells=(CellConfig(arm="full"),))
    task = replace(made.tasks[0], max_tokens=4)
    return replace(made, output_dir=str(tmp_path / "runs"), tasks=(task,))


def narrow(config: RunConfig) -> RunConfig:
    """In bfloat16, where rows agree in tiles alone."""
    return replace(config, model=replace(config.model, dtype="bfloat16"))


def test_where_rows_never_depend_on_their_call_nothing_is_probed(config: RunConfig) -> None:
    provenance = load_run(execute(config, console=QUIET)).provenance

    assert provenance["opened"] == {"row_tiles": {}, "probe": None, "draft_weight_bytes": {}}
    assert provenance["backend"]["name"] == "bundled"


def test_the_tiles_are_those_of_the_layers_that_ran(config: RunConfig) -> None:
    provenance = load_run(execute(narrow(config), console=QUIET)).provenance

    tiles = provenance["opened"]["row_tiles"]
    assert tiles
    assert all(tile in PROBE_TILES for tile in tiles.values())
    assert any(shape.startswith(f"{provenance['model']['vocab_size']}x") for shape in tiles)
    assert provenance["opened"]["probe"] == {"rows": list(PROBE_ROWS), "tiles": list(PROBE_TILES)}


def test_a_run_that_was_killed_before_the_model_was_there_records_them_when_resumed(config: RunConfig) -> None:
    path = execute(narrow(config), console=QUIET)
    whole = json.loads((path / "provenance.json").read_text())
    begun = {key: value for key, value in whole.items() if key != "opened"}
    (path / "provenance.json").write_text(json.dumps(begun))
    (path / "manifest.json").unlink()
    (path / "requests.jsonl").write_bytes(b"")
    execute(narrow(config), console=QUIET)

    assert json.loads((path / "provenance.json").read_text()) == whole


def test_other_tiles_than_the_recorded_ones_are_refused(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another GPU of the same name may choose others, and sum in another order."""
    path = execute(narrow(config), console=QUIET)
    (path / "manifest.json").unlink()
    lines = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (path / "requests.jsonl").write_bytes(lines[0])
    load = bundled.load
    monkeypatch.setattr(bundled, "load", lambda *given: (load(*given)[0], {"1x1": 64}))
    with pytest.raises(RecordError, match=r"begun with opened .*row_tiles.* now it is .*choose another run name"):
        execute(narrow(config), console=QUIET)

    assert (path / "requests.jsonl").read_bytes() == lines[0]
