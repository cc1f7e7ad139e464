"""The commands of a first hour: init, runs, show, diff, rm, completion, and what each says comes next."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from vcbench.cli.main import app
from vcbench.cli.runs import find_run
from vcbench.config.load import dump_config, load_config
from vcbench.config.overrides import name_beside
from vcbench.errors import RecordError, TaskError, UsageError
from vcbench.forensics.tiny import tiny_config
from vcbench.models.catalog import known_architecture
from vcbench.tasks.recorded_requests import read_request
from vcbench.tasks.rows import read_rows

NESTED = ("model/fetch", "model/list", "model/show")
ALL = ("demo", "init", "run", "runs", "compare", "score", "check", "show", "diff", "rm", "calibrate", "ls", "doctor")
COMMANDS = (*ALL, "model", *NESTED)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory on a machine without any model."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("COLUMNS", "80")
    return work


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `run.yaml` and its run of a tiny model under `runs`."""
    work, patch = tmp_path_factory.mktemp("finished"), pytest.MonkeyPatch()
    patch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    patch.chdir(work)
    config = tiny_config("tiny", requests=3, batch_size=2)
    (work / "run.yaml").write_text(dump_config(config))
    done = CliRunner().invoke(app, ["run", "run.yaml"], catch_exceptions=False)
    patch.undo()
    assert done.exit_code == 0
    return work


@pytest.fixture
def there(finished: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the directory of `finished`."""
    monkeypatch.chdir(finished)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    return finished


def run(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert isinstance(done.exception, (UsageError, TaskError, RecordError)), done.output
    return str(done.exception)


def next_words(done: Result) -> list[str]:
    lines = [line for line in done.output.splitlines() if line.startswith("next: ")]
    assert len(lines) == 1, done.output
    line = lines[0]
    assert line.startswith("next: vcbench ")
    return shlex.split(line.removeprefix("next: vcbench "))


@pytest.mark.parametrize("command", COMMANDS)
def test_short_help_of_every_command(command: str) -> None:
    words = command.split("/")
    assert run(*words, "-h").stdout == run(*words, "--help").stdout


def test_help_names_all_of_them() -> None:
    shown = run("-h").stdout
    assert all(f"│ {command.split('/')[0]} " in shown for command in COMMANDS)
    assert "--install-completion" in shown


# --- next: ---------------------------------------------------------------------------------------------------------


def test_what_comes_next_works_in_an_empty_directory(here: Path) -> None:
    """Followed from `ls` on, each command ends with 0, until a model has to be fetched."""
    words, seen = ["ls", "compressors"], []
    while words[:2] != ["model", "fetch"]:
        seen.append(words[0])
        words = next_words(run(*words))
        assert len(seen) < 5
    assert seen == ["ls", "init", "run"]
    assert words == ["model", "fetch", "smollm2-135m"]
    assert next_words(run("runs")) == ["run", "vcbench.yaml", "--dry-run"]


@pytest.mark.parametrize(
    "command",
    ["runs", "compare tiny", "score tiny", "check tiny", "show tiny", "show tiny --request r000", "run run.yaml"],
)
def test_what_comes_next_works_with_a_run(there: Path, command: str) -> None:
    words, seen = shlex.split(command), [command]
    if words[:2] == ["check", "tiny"]:
        words = ["check", "runs/tiny"]
    for _ in range(4):
        words = next_words(run(*words))
        seen.append(" ".join(words))
        assert not any(word in ("ID", "RUN", "CONFIG") for word in words), seen


def test_what_comes_next_is_quoted(there: Path) -> None:
    """A directory with a blank in its name."""
    place = there / "other runs"
    if not place.exists():
        place.symlink_to(there / "runs")
    words = next_words(run("compare", "other runs/tiny"))
    assert words[1] == "other runs/tiny"
    run(*words)


# --- init ----------------------------------------------------------------------------------------------------------

TRACES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "messages": ([{"messages": [{"role": "user", "content": "How do I sort a list?"}]}], "OpenAI chat messages"),
    "prompt": ([{"prompt": "Sort this list"}], "lines of `prompt`"),
    "text": ([{"text": "Once upon a time", "source": "x"}], "lines of `text`"),
    "sharegpt": (
        [{"id": "1", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good day"}]}],
        "ShareGPT conversations, 1 with a recorded answer",
    ),
    "recorded": (
        [{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99}}],
        "recorded requests (OpenAI chat messages)",
    ),
    "ids": ([{"prompt_ids": [1, 2, 3]}], "token ids"),
}


@pytest.mark.parametrize("form", TRACES)
@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_init_recognises_the_form_of_prompts_and_the_plan_takes_it(here: Path, form: str, kind: str) -> None:
    rows, name = TRACES[form]
    path = here / f"my {form}.{kind}"
    path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    done = run("init", "--trace", path.name)
    text = (here / "vcbench.yaml").read_text()
    assert f"# your prompts: {name}" in text
    config = load_config(here / "vcbench.yaml", architecture_of=known_architecture)
    assert config.tasks[0].options["path"] == path.name
    assert config.name == f"my-{form}"
    assert {cell.arm for cell in config.cells} == {"full", "lossy", "vericache"}
    words = next_words(done)
    assert words == ["run", "vcbench.yaml", "--dry-run"]
    assert "1 prompts" in run(*words).stdout


def test_init_chooses_sizes_by_what_is_recorded(here: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "word " * (100 + number)}], "response": "answer " * 300}
        for number in range(50)
    ]
    (here / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("init", "--trace", "t.jsonl", "-o", "mine.yaml", "--name", "mine")
    task = load_config(here / "mine.yaml").tasks[0]
    assert task.max_tokens == 320
    assert task.limit == 20
    assert 150 <= task.options["max_context_tokens"] <= 256
    assert "the first 20 of 50, for a first look" in (here / "mine.yaml").read_text()


def test_init_leaves_out_what_does_not_fit_and_says_so(here: Path) -> None:
    rows = [{"prompt": "word " * 20_000}, {"prompt": "word " * 50}]
    (here / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("init", "--trace", "t.jsonl")
    text = (here / "vcbench.yaml").read_text()
    assert "about 1 prompts are longer and left out" in text
    assert yaml.safe_load(text)["tasks"][0]["max_context_tokens"] == 8192 - 256
    (here / "t.jsonl").write_text(json.dumps(rows[0]))
    message = refused("init", "--trace", "t.jsonl", "-o", "b.yaml")
    assert "even the shortest prompt" in message
    assert "--model" in message
    assert not (here / "b.yaml").exists()


BAD = {
    "": "holds no prompts",
    "{": "line 1: not a line of JSON",
    '{"question": "x"}': "exactly one of `prompt`, `messages` and `prompt_ids` is needed",
    '{"prompt": "a"}\n{"prompt": 3}': "line 2: field `prompt` must be a text",
    '{"conversations": [{"from": "martian", "value": "x"}]}': "`conversations[0].from` is 'martian'",
    '{"conversations": []}': "`conversations` is empty",
    '{"conversations": [{"from": "human"}]}': "must be an object with `from` and a text `value`",
    '{"text": ""}': "is empty",
    '{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}': "'a' is that of line 1 already",
}


@pytest.mark.parametrize("content", BAD)
def test_init_refuses_what_is_no_file_of_prompts(here: Path, content: str) -> None:
    (here / "t.jsonl").write_text(content)
    assert BAD[content] in refused("init", "--trace", "t.jsonl")
    assert [path.name for path in here.iterdir()] == ["t.jsonl"]


def test_init_refuses_what_cannot_be_read_or_written(here: Path) -> None:
    assert "none.jsonl cannot be read" in refused("init", "--trace", "none.jsonl")
    assert "is a directory" in refused("init", "--trace", ".")
    assert "cannot be written" in refused("init", "-o", "no/such/x.yaml")
    assert "ends in .yaml" in refused("init", "-o", "x.txt")
    assert "is no name for a run" in refused("init", "--name", "a/b")
    assert "owner/unheard-of is not known" in refused("init", "--model", "owner/unheard-of")
    assert list(here.iterdir()) == []


def test_init_never_overwrites(here: Path) -> None:
    run("init")
    before = (here / "vcbench.yaml").read_bytes()
    assert "exists and is not overwritten" in refused("init")
    assert (here / "vcbench.yaml").read_bytes() == before
    (here / "link.yaml").symlink_to(here / "nowhere.yaml")
    assert "exists and is not overwritten" in refused("init", "-o", "link.yaml")
    assert not (here / "nowhere.yaml").exists()


def test_other_tools_names_count_only_where_none_of_ours_is_there(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"prompt": "asked", "text": "a remark"}')
    request = read_request(next(read_rows(tmp_path / "t.jsonl")))
    assert (request.value, request.others) == ("asked", {"text": "a remark"})


# --- runs, show, diff, rm ------------------------------------------------------------------------------------------


def test_runs_is_one_list_under_both_words(there: Path) -> None:
    assert run("runs", "--json").stdout == run("ls", "runs", "--json").stdout
    assert json.loads(run("runs", "--json").stdout)[0]["run"] == "tiny"


def test_runs_lie_in_a_directory(here: Path) -> None:
    (here / "file").write_text("")
    assert "is no directory" in refused("runs", "--dir", "file")
    assert "no runs under none" in run("runs", "--dir", "none").stderr


def test_the_gate_leaves_the_run_of_the_file_alone_too(there: Path) -> None:
    before = (there / "runs/tiny/requests.jsonl").read_bytes()
    done = run("check", "run.yaml", "--set", "cells.2.draft_length=3")
    assert "runs/tiny is left alone" in done.stderr
    assert (there / "runs/tiny/requests.jsonl").read_bytes() == before


def test_show_without_a_request_lists_them(there: Path) -> None:
    done = run("show", "tiny")
    assert all(name in done.stdout for name in ("r000", "r001", "r002"))
    assert "3 of 3" in done.stdout
    assert next_words(done) == ["show", "runs/tiny", "--request", "r000"]
    assert "it has no task" not in done.stdout
    assert "has no task 'tracy'; did you mean 'trace'?" in refused("show", "tiny", "--task", "tracy")


def test_diff_says_what_differs_in_words(there: Path) -> None:
    run("run", "run.yaml", "--name", "again")
    run("run", "run.yaml", "--name", "short", "--set", "tasks.0.limit=2", "--set", "cells.1.draft_length=4")
    same = json.loads(run("diff", "tiny", "again", "--json").stdout)["differences"]
    assert same["cells"] == same["prompts"] == same["answers"] == same["hardware"] == same["counts"] == []
    assert same["configuration"] == ["name: tiny against again"]
    done = run("diff", "tiny", "short")
    assert "tasks.trace.limit: null against 2" in done.stdout
    assert "trace: vericache snapkv-2x k=6: only in tiny" in done.stdout
    assert "trace: vericache snapkv-2x k=4: only in short" in done.stdout
    assert "trace: 1 prompt (r002) only in tiny" in done.stdout
    assert "prompts: 3 against 2" in done.stdout
    assert "hardware: the same" in done.stdout
    run(*next_words(done))
    assert "are the same run" in refused("diff", "tiny", "runs/tiny")


@pytest.fixture
def several(here: Path) -> Path:
    """Three directories that count as runs, and things that are none."""
    for name in ("a", "b", "c"):
        (here / "runs" / name).mkdir(parents=True)
        (here / "runs" / name / "config.yaml").write_text("name: x\n")
        (here / "runs" / name / "provenance.json").write_text('{"cells": []}')
    (here / "runs" / "notes").mkdir()
    (here / "runs" / "link").symlink_to(here / "runs" / "a")
    (here / "elsewhere" / "d").mkdir(parents=True)
    (here / "elsewhere" / "d" / "provenance.json").write_text("{}")
    return here


def left(work: Path) -> list[str]:
    return sorted(path.name for path in (work / "runs").iterdir())


def test_rm_removes_what_is_named(several: Path) -> None:
    done = run("rm", "a", "runs/b", "--yes")
    assert done.stdout == "runs/a\nruns/b\n"
    assert left(several) == ["c", "link", "notes"]
    assert next_words(done) == ["runs"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("d", "no run 'd' under runs/"),
        ("elsewhere/d", "does not lie right below runs/"),
        ("runs/a/../../elsewhere/d", "does not lie right below runs/"),
        ("notes", "is no run"),
        ("link", "is a link"),
        ("runs", "no run 'runs' under runs/"),
        (".", "does not lie right below runs/"),
        ("..", "does not lie right below runs/"),
        ("/", "does not lie right below runs/"),
        ("", "no run"),
    ],
)
def test_rm_refuses_and_then_removes_nothing(several: Path, target: str, reason: str) -> None:
    assert reason in refused("rm", "c", target, "--yes")
    assert left(several) == ["a", "b", "c", "link", "notes"]
    assert (several / "elsewhere" / "d" / "provenance.json").exists()


def test_rm_refuses_a_run_in_use(several: Path) -> None:
    descriptor = os.open(several / "runs" / "b" / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, b"4711\n")
    try:
        assert "is being written by another vcbench (process 4711)" in refused("rm", "a", "b", "--yes")
    finally:
        os.close(descriptor)
    assert left(several) == ["a", "b", "c", "link", "notes"]


def test_rm_asks(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "give --yes" in refused("rm", "a")
    monkeypatch.setattr("vcbench.cli.rm._asked_by_a_person", lambda: True)
    done = CliRunner().invoke(app, ["rm", "a"], input="n\n", catch_exceptions=False)
    assert done.exit_code == 0
    assert "nothing is removed" in done.stderr
    assert left(several) == ["a", "b", "c", "link", "notes"]
    CliRunner().invoke(app, ["rm", "a"], input="y\n", catch_exceptions=False)
    assert left(several) == ["b", "c", "link", "notes"]


# --- the documentation -----------------------------------------------------------------------------------------------


def shown_in(heading: str) -> list[str]:
    """The commands of the block below a heading of docs/commands.md."""
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    block = text.partition(f"## {heading}")[2].partition("```console")[2].partition("```")[0]
    return [line[2:].partition("#")[0].strip() for line in block.splitlines() if line.startswith("$ ")]


def test_the_documented_first_run(here: Path) -> None:
    commands = shown_in("A first run")
    assert len(commands) == 2
    for command in commands:
        run(*shlex.split(command)[1:])


def test_the_documented_looks_at_runs(there: Path) -> None:
    run("run", "run.yaml", "--name", "first")
    commands = shown_in("Looking at runs")
    assert len(commands) == 6
    for command in commands:
        run(*shlex.split(command)[1:])


# --- names ---------------------------------------------------------------------------------------------------------


def test_a_file_where_a_run_is_expected(here: Path) -> None:
    (here / "base.jsonl").write_text("{}")
    (here / "x.yaml").write_text("")
    for command in ("compare", "show", "score", "check"):
        message = refused(command, "base.jsonl")
        assert "base.jsonl is an outputs file" in message
        assert "vcbench check REFERENCE base.jsonl" in message
    assert "x.yaml is a configuration" in refused("compare", "x.yaml")


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["cells.3.draft_length=25"], "quick-cells.3.draft_length-25"),
        (["seed=1", "engine.threads=2"], "quick-seed-1-engine.threads-2"),
        (["output_dir=/tmp/x"], "quick"),
        (["seed=1", "name=quick"], "quick"),
        (['methods.a.x="ä / ö"'], "quick-methods.a.x"),
    ],
)
def test_the_name_of_a_run_beside(overrides: list[str], name: str) -> None:
    assert name_beside("quick", overrides) == name


def test_long_names_beside_stay_names_and_differ() -> None:
    from vcbench.config.checks import NAME

    made = {name_beside("q" * 99, [f"seed={'1' * 200}{end}"]) for end in "ab"}
    assert len(made) == 2
    assert all(NAME.fullmatch(name) for name in made)


def test_set_leaves_the_run_of_the_file_alone(there: Path) -> None:
    before = {path.name: path.read_bytes() for path in (there / "runs/tiny").iterdir()}
    done = run("run", "run.yaml", "--set", "cells.2.draft_length=5")
    assert done.stdout == "runs/tiny-cells.2.draft_length-5\n"
    assert "runs/tiny is left alone" in done.stderr
    assert "taken over from runs/tiny" in done.stderr
    assert {path.name: path.read_bytes() for path in (there / "runs/tiny").iterdir()} == before
    assert find_run("tiny-cells.2.draft_length-5").is_dir()
    again = run("run", "run.yaml", "--set", "cells.2.draft_length=5")
    assert "is complete; nothing to run" in again.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("vcbench compare ti", ["tiny"]),
        ("vcbench show runs/ti", ["runs/tiny"]),
        ("vcbench show tiny --request r00", ["r000", "r001", "r002"]),
        ("vcbench run r", ["run.yaml"]),
        ("vcbench score tiny --task ne", ["needle"]),
        ("vcbench calibrate smol", ["smollm2-135m"]),
        ("vcbench calibrate smollm2-135m kv", ["kvquant", "kvzap"]),
        ("vcbench run run.yaml --gpu H2", ["H200"]),
        ("vcbench run run.yaml --set methods.m.compressor=snap", ["methods.m.compressor=snapkv"]),
    ],
)
def test_the_shell_completes(there: Path, monkeypatch: pytest.MonkeyPatch, words: str, expected: list[str]) -> None:
    environment = {"_VCBENCH_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environment["_TYPER_COMPLETE_ARGS"] = words
    done = CliRunner().invoke(app, [], prog_name="vcbench", env=environment)
    offered = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert all(name in offered for name in expected), (done.stdout, done.stderr)
    if "calibrate smollm2-135m" in words:
        assert "kvzip" not in offered
