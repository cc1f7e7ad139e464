"""What a run on disk is good for when the same command asks for something else: only what changed is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.runners.test_run import CELLS, MAX_TOKENS, answers, heard, quiet, refused, snapkv, timeless, trace
from vcbench.backends.bundled.backend import Bundled
from vcbench.config.options import build_options
from vcbench.config.sampling import Sampling
from vcbench.config.schema import CellConfig, EngineConfig, MethodConfig, MetricsConfig, RunConfig
from vcbench.engine.model.decoder import Decoder
from vcbench.forensics.tiny import tiny_config
from vcbench.records.reader import load_run
from vcbench.runners.run import execute

__all__ = ["refused"]
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    made = tiny_config("tiny", requests=5, batch_size=2, cells=CELLS)
    task = replace(made.tasks[0], max_tokens=MAX_TOKENS)
    return replace(made, output_dir=str(tmp_path / "runs"), tasks=(task,), metrics=MetricsConfig(divergence=True))


def rows(*names: str, named: bool = True) -> Rows:
    """Prompts that their names decide."""
    made = [{"id": name, "prompt_ids": [5 + (ord(name) * step) % 40 for step in range(1, 60)]} for name in names]
    return made if named else [{"prompt_ids": row["prompt_ids"]} for row in made]


def limited(config: RunConfig, limit: int | None) -> RunConfig:
    return replace(config, tasks=(replace(config.tasks[0], limit=limit),))


def nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "forward", None)


def asked(path: Path) -> list[str]:
    return [request for _, request in load_run(path).prompts]


def one_run(path: Path) -> bool:
    return sorted(each.name for each in path.parent.iterdir()) == [path.name]


def test_a_lower_limit_computes_nothing_and_counts_what_is_asked(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = execute(config, console=quiet())
    before, records = answers(path), (path / "requests.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        nothing_is_computed(patch)
        console = heard()
        assert execute(limited(config, 2), console=console) == path
    text = console.export_text()
    run = load_run(path)

    assert "3 of 5 recorded prompts are not asked now" in text
    assert "is complete; nothing to run" in text
    assert one_run(path)
    assert asked(path) == ["r000", "r001"]
    assert run.complete
    assert run.set_aside == 3
    assert {request for _, _, request in run.requests} == {"r000", "r001"}
    assert {request for _, _, request in run.divergences} == {"r000", "r001"}
    assert run.config["tasks"][0]["limit"] == 2
    assert (path / "requests.jsonl").read_bytes() == records

    nothing_is_computed(monkeypatch)
    execute(config, console=quiet())
    assert answers(path) == before
    assert load_run(path).complete
    assert load_run(path).set_aside == 0


def test_a_higher_limit_computes_the_new_prompts_alone(config: RunConfig) -> None:
    path = execute(limited(config, 2), console=quiet())
    first = (path / "requests.jsonl").read_bytes()
    execute(config, console=quiet())

    assert (path / "requests.jsonl").read_bytes().startswith(first)
    assert asked(path) == [f"r{n:03}" for n in range(5)]
    assert load_run(path).complete


CHANGES: dict[str, Callable[[], Rows]] = {
    "removed": lambda: rows("a", "c", "d"),
    "first removed": lambda: rows("b", "c", "d"),
    "reordered": lambda: rows("d", "a", "c", "b"),
    "all but one": lambda: rows("c"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_go_or_move_cost_nothing(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source = tmp_path / "p.jsonl"
    path = execute(trace(config, source, rows("a", "b", "c", "d")), console=quiet())
    before = answers(path)
    nothing_is_computed(monkeypatch)
    changed = CHANGES[change]()
    console = heard()
    assert execute(trace(config, source, changed), console=console) == path

    assert "has changed" not in console.export_text()
    assert one_run(path)
    assert asked(path) == [row["id"] for row in changed]
    assert answers(path).items() <= before.items()
    assert load_run(path).complete


@pytest.mark.parametrize("place", [0, 1, 4])
def test_an_added_row_is_computed_alone(config: RunConfig, tmp_path: Path, place: int) -> None:
    source = tmp_path / "p.jsonl"
    path = execute(trace(config, source, rows("a", "b", "c", "d")), console=quiet())
    before, first = answers(path), (path / "requests.jsonl").read_bytes()
    names = list("abcd")
    names.insert(place, "n")
    execute(trace(config, source, rows(*names)), console=quiet())
    after = answers(path)

    assert one_run(path)
    assert (path / "requests.jsonl").read_bytes().startswith(first)
    assert asked(path) == names
    assert {key for key in after if key not in before} == {(label, "n") for label, _ in before}
    assert load_run(path).complete


def test_a_changed_row_is_computed_again_and_the_others_are_taken_over(config: RunConfig, tmp_path: Path) -> None:
    source = tmp_path / "p.jsonl"
    old = rows("a", "b", "c", "d")
    path = execute(trace(config, source, old), console=quiet())
    before = answers(path)
    changed = [*old[:2], {**old[2], "prompt_ids": rows("x")[0]["prompt_ids"]}, old[3]]
    console = heard()
    assert execute(trace(config, source, changed), console=console) == path
    text, after = console.export_text(), answers(path)

    assert "prompt c of task trace has changed" in text
    assert f"{3 * len(CELLS)} answers of" in text
    assert answers(path.with_name("tiny~1")) == before
    assert all((after[key] == before[key]) == (key[1] != "c") for key in before)
    provenance = load_run(path).provenance
    assert provenance["taken_over"]["run"] == "tiny~1"
    assert provenance["taken_over"]["answers"] == 3 * len(CELLS)
    fresh = execute(replace(trace(config, source, changed), name="fresh"), console=quiet())
    assert sorted(map(json.dumps, timeless(path))) == sorted(map(json.dumps, timeless(fresh)))


def test_rows_without_names_keep_their_answers_when_one_goes(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names are their lines, so that all behind the row that went are called otherwise."""
    source = tmp_path / "p.jsonl"
    path = execute(trace(config, source, rows("a", "b", "c", "d", named=False)), console=quiet())
    before = answers(path)
    nothing_is_computed(monkeypatch)
    execute(trace(config, source, rows("a", "c", "d", named=False)), console=quiet())
    after = answers(path)

    moved = {"line-1": "line-1", "line-2": "line-3", "line-3": "line-4"}
    assert after == {(label, new): before[label, old] for label, _ in before for new, old in moved.items()}
    assert load_run(path).complete


def test_answers_that_a_name_decides_are_not_given_to_another(config: RunConfig, tmp_path: Path) -> None:
    """Draws and seeded methods depend on the request's name; what neither does is taken over."""
    options = build_options("compressor", "random", {})
    noise = MethodConfig(compressor="random", options={"keep": options.keep})
    cells = (CellConfig(arm="full"), CellConfig(arm="lossy", method="noise"))
    base = replace(config, methods={"noise": noise}, cells=cells)
    drawn = Sampling(temperature=1.0)
    for name, sampling, taken in (("greedy", Sampling(), ["full"]), ("drawn", drawn, None)):
        source = tmp_path / f"{name}.jsonl"
        named = replace(base, name=name)
        execute(trace(named, source, rows("a", "b", "c", named=False), sampling=sampling), console=quiet())
        path = execute(trace(named, source, rows("b", "c", named=False), sampling=sampling), console=quiet())
        assert load_run(path).provenance.get("taken_over", {}).get("cells") == taken
        fresh = replace(trace(named, source, rows("b", "c", named=False), sampling=sampling), name=f"{name}-fresh")
        assert answers(path) == answers(execute(fresh, console=quiet()))


def other_draft(config: RunConfig) -> RunConfig:
    return replace(config, cells=(*config.cells[:2], replace(config.cells[2], draft_length=7)))


def test_a_run_beside_leaves_the_first_alone_and_shares_its_answers(config: RunConfig) -> None:
    path = execute(config, console=quiet())
    kept = {file.name: file.read_bytes() for file in path.iterdir()}
    console = heard()
    beside = execute(other_draft(config), console=console, beside="tiny-k-7")
    text = console.export_text()

    assert beside == path.with_name("tiny-k-7")
    assert {file.name: file.read_bytes() for file in path.iterdir()} == kept
    assert f"{path} is left alone" in text
    assert "10 answers of full, lossy snapkv-2x" in text
    run = load_run(beside)
    assert run.complete
    assert run.config["name"] == "tiny-k-7"
    assert run.provenance["taken_over"]["run"] == "tiny"
    assert run.provenance["taken_over"]["cells"] == ["full", "lossy snapkv-2x"]
    fresh = execute(replace(other_draft(config), name="fresh"), console=quiet())
    assert sorted(map(json.dumps, timeless(beside))) == sorted(map(json.dumps, timeless(fresh)))
    assert {batch.cell for batch in run.batches} == {cell.id for cell in run.cells}

    console = heard()
    assert execute(other_draft(config), console=console, beside="tiny-k-7") == beside
    assert "is complete; nothing to run" in console.export_text()
    assert sorted(each.name for each in path.parent.iterdir()) == ["fresh", "tiny", "tiny-k-7"]


def test_a_changed_row_makes_no_run_beside(config: RunConfig, tmp_path: Path) -> None:
    """The name beside says what `--set` changed; rows are none of it."""
    source = tmp_path / "p.jsonl"
    path = execute(trace(config, source, rows("a", "b")), console=quiet(), beside="tiny-x")
    changed = [*rows("a"), {"id": "b", "prompt_ids": [9] * 30}]
    assert execute(trace(config, source, changed), console=quiet(), beside="tiny-x") == path
    assert sorted(each.name for each in path.parent.iterdir()) == ["tiny", "tiny~1"]


def test_wall_clocks_of_another_batch_size_are_not_taken_over(config: RunConfig) -> None:
    execute(config, console=quiet())
    console = heard()
    changed = replace(other_draft(config), engine=EngineConfig(batch_size=3, threads=1))
    beside = execute(changed, console=console, beside="other")

    text = console.export_text()
    assert "nothing is taken over" in text
    assert "batches of 2, this run does in batches of 3" in text
    assert "taken_over" not in load_run(beside).provenance


@pytest.mark.usefixtures("refused")
def test_failed_answers_are_computed_again(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "p.jsonl"
    found: Rows = [*rows("a"), {"id": "bad", "prompt_ids": [5] * 40}]
    path = execute(trace(config, source, found), console=quiet())
    assert {line.finish_reason for line in load_run(path).requests.values() if line.request == "bad"} == {"error"}
    monkeypatch.undo()
    changed = replace(trace(config, source, found), methods={**config.methods, "snapkv-2x": snapkv(3)})
    beside = load_run(execute(changed, console=quiet(), beside="other"))

    assert beside.provenance["taken_over"]["answers"] == 2
    assert all(line.error is None for line in beside.requests.values())
    assert len(beside.requests) == 2 * len(CELLS)


def test_a_run_killed_after_its_prompts_were_changed_is_not_complete(config: RunConfig, tmp_path: Path) -> None:
    """The manifest goes before the change is written, so it never vouches for what is not there."""
    source = tmp_path / "p.jsonl"
    path = execute(trace(config, source, rows("a", "b")), console=quiet())

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        execute(trace(config, source, rows("n", "a", "b")), console=quiet(), backend=partial(Bundled, session=die))
    assert not load_run(path).complete
    execute(trace(config, source, rows("n", "a", "b")), console=quiet())
    assert load_run(path).complete
    assert asked(path) == ["n", "a", "b"]


def test_a_home_directory_is_meant_by_a_tilde(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = execute(replace(limited(config, 1), output_dir="~/runs"), console=quiet())
    assert path == tmp_path / "home" / "runs" / "tiny"
    assert not (tmp_path / "~").exists()
