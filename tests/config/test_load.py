"""Every kind of bad configuration is refused with its place and a suggestion; good ones come out resolved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.conftest import GOOD
from vcbench.config.load import load_config
from vcbench.config.schema import AdaptiveDraft, RunConfig
from vcbench.errors import ConfigError
from vcbench.models.architecture import Architecture

Load = Callable[..., RunConfig]
Problems = Callable[..., list[str]]

TINY = Architecture(
    family="llama",
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    norm_eps=1e-5,
    max_context=64,
)


def test_defaults_are_resolved(load: Load) -> None:
    config = load(GOOD)
    assert config.name == "trial"
    assert config.engine.exactness == "bitwise"
    assert config.tasks[0].options == {"words": 10}
    assert config.methods["small"].options["factor"] == 4.0
    assert isinstance(config.methods["small"].options["factor"], float)
    assert config.methods["smaller"].options["mode"] == "mean"
    assert config.cells[3].draft_length == 25
    assert config.cells[1].draft_length is None
    assert config.places["cells.2"] == "run.yaml:14"
    assert config.places["methods.small"] == "run.yaml:9"


CASES = [
    ("name: trial", "name: trial\nsed: 3", "run.yaml:2: unknown key `sed` in the configuration (did you mean 'seed'?)"),
    ("id: tiny", "id: tiny\n  dtyp: auto", "run.yaml:4: unknown key `dtyp` in `model` (did you mean 'dtype'?)"),
    ("id: tiny", "revision: a", "run.yaml:2: `model` lacks the key `id`"),
    ("limit: 2", "limit: '2'", "run.yaml:6: `limit` must be a whole number, not the text '2' (remove the quotes)"),
    ("limit: 2", "limit: 2.0", "run.yaml:6: `limit` must be a whole number, not 2.0 (write 2)"),
    ("limit: 2", "limit: true", "run.yaml:6: `limit` must be a whole number, not true"),
    ("limit: 2", "limit: 99999999999999999999", "run.yaml:6: `limit` is beyond 64 bits"),
    ("limit: 2", "limit: 0", "run.yaml:6: `limit` must be at least 1, not 0"),
    ("max_tokens: 16", "max_tokens: 0", "run.yaml:7: `max_tokens` must be at least 1, not 0"),
    ("max_tokens: 16", "max_tokens:", "run.yaml:7: `max_tokens` must be a whole number, not nothing"),
    ("max_tokens: 16", "stop: x", "run.yaml:7: `stop` must be a list, not the text 'x'"),
    ("max_tokens: 16", "stop: [1]", "run.yaml:7: `stop` item 0 must be text, not 1 (put it in quotes)"),
    ("max_tokens: 16", "stop: ['']", "run.yaml:7: a stop string is empty"),
    ("max_tokens: 16", 'stop: ["\\ud83d"]', "run.yaml:7: `stop` item 0 holds half of a surrogate pair"),
    ("max_tokens: 16", "wrods: 3", "run.yaml:7: unknown key `wrods` in task `probe-task` (did you mean 'words'?)"),
    ("max_tokens: 16", "words: 0", "run.yaml:7: `words` must be at least 1, not 0"),
    ("name: probe-task", "name: prob-task", "run.yaml:5: unknown task 'prob-task' (did you mean 'probe-task'?)"),
    (
        "compressor: probe, factor: 4",
        "compressor: prob",
        "run.yaml:9: unknown compressor 'prob' (did you mean 'probe'?)",
    ),
    ("factor: 4", "factr: 4", "run.yaml:9: unknown key `factr` in compressor `probe` (did you mean 'factor'?)"),
    ("factor: 4", "factor: four", "run.yaml:9: `factor` must be a number, not the text 'four'"),
    ("factor: 4", "factor: 1e1", "run.yaml:9: `factor` must be a number, not the text '1e1' (1e-3 is text in YAML"),
    ("factor: 4", "factor: .nan", "run.yaml:9: `factor` must be finite, not nan"),
    ("factor: 4", "factor: .inf", "run.yaml:9: `factor` must be finite, not inf"),
    ("factor: 4", "factor: 1", "run.yaml:9: compressor `probe`: factor must be above 1, not 1.0"),
    ("factor: 4", "mode: men", "run.yaml:9: `mode` cannot be the text 'men' (did you mean 'mean'?)"),
    ("factor: 4", "layers: [a]", "run.yaml:9: `layers` item 0 must be a whole number"),
    ("factor: 4", "options: {factor: 4}", "run.yaml:9: unknown key `options` in compressor `probe` (write the options"),
    ("{compressor: probe, factor: 4}", "[probe]", "run.yaml:9: `small` must be a mapping of keys, not a list"),
    ("  small:", "  a b:", "run.yaml:9: 'a b' is no name for a method"),
    ("  - arm: full", "  - arm: fall", "run.yaml:12: `arm` cannot be the text 'fall' (did you mean 'full'?)"),
    (
        "  - arm: full",
        "  - {arm: full, method: small}",
        "run.yaml:12: `full` keeps the whole cache and takes no method",
    ),
    ("  - arm: full", "  - {arm: full, draft_length: 2}", "run.yaml:12: a full cell does not draft"),
    (
        "  - arm: full",
        "  - arm: full\n  - arm: lossy",
        "run.yaml:13: a lossy cell lacks the key `method` (one of: small",
    ),
    ("{arm: lossy, method: small}", "{arm: lossy, method: smal}", "run.yaml:13: unknown method 'smal' (did you mean"),
    ("lossy, method: small}", "lossy, method: small, draft_length: 3}", "run.yaml:13: a lossy cell does not draft"),
    ("draft_length: 8", "draft_length: 0", "run.yaml:14: `draft_length` must be at least 1, not 0"),
    (
        "draft_length: 8",
        "draft_length: soon",
        "run.yaml:14: `draft_length` must be a whole number or `auto` or a mapping, not the text 'soon'",
    ),
    ("draft_length: 8", "draft_length: {most: 8}", "run.yaml:14: unknown key `most` in `draft_length`"),
    ("draft_length: 8", "draft_length: {min: 9, max: 8}", "run.yaml:14: draft_length goes from 9 to 8"),
    ("draft_length: 8", "draft_length: {min: 0}", "run.yaml:14: `min` must be at least 1, not 0"),
    ("draft_length: 8", "draft_length: {verify_cost: 0}", "run.yaml:14: `verify_cost` must be above 0"),
    ("lossy, method: small}", "lossy, method: small, draft_length: auto}", "run.yaml:13: a lossy cell does not draft"),
    ("  - arm: full", "  - {arm: full, full_cache: disk}", "run.yaml:12: a full cell does not verify"),
    ("lossy, method: small}", "lossy, method: small, full_cache: disk}", "run.yaml:13: a lossy cell does not verify"),
    ("  - arm: full", "  - {arm: full, draft_weights: int8}", "run.yaml:12: a full cell does not draft"),
    ("lossy, method: small}", "lossy, method: small, draft_weights: int8}", "run.yaml:13: a lossy cell does not draft"),
    ("draft_length: 8", "full_cache: tape", "run.yaml:14: `full_cache` cannot be the text 'tape'"),
    ("smaller}", "small, draft_length: 8}", "run.yaml:15: the same cell as the one at run.yaml:14 (remove one"),
    ("factor: 8.5, mode: mean}", "factor: 4.0}\n  x: {compressor: probe}", None),
    ("  - arm: full\n", "", "run.yaml:11: the baseline is missing: no cell has `arm: full`"),
    ("name: trial", "name: ../etc", "run.yaml:1: '../etc' is no name for a run"),
    ("name: trial", "name: ''", "run.yaml:1: '' is no name for a run"),
    ("name: trial", "name: trial\nname: trial", "run.yaml:2: key 'name' is given twice, first at run.yaml:1"),
    ("name: trial", "name: trial\n3: x", "run.yaml:2: keys are text, not '3'"),
    ("name: trial", "name: trial\noutput_dir: ''", "run.yaml:2: `output_dir` is empty"),
    ("name: trial", "name: trial\nseed: -1", "run.yaml:2: `seed` must be at least 0, not -1"),
    ("name: trial", "name: trial\nengine: {batch_size: 0}", "run.yaml:2: `batch_size` must be at least 1, not 0"),
    ("name: trial", "name: trial\nengine: [1]", "run.yaml:2: `engine` must be a mapping of keys, not a list"),
    ("name: trial", "name: trial\nseed: !!int x", "run.yaml:2: the value 'x' cannot be read"),
    ("name: trial", "name: trial\nseed: !!int ''", "run.yaml:2: the value '' cannot be read"),
    ("name: trial", "name: !!timestamp x", "run.yaml:1: the value 'x' cannot be read"),
    ("name: trial", "name: 2024-01-02", "run.yaml:1: `name` must be text, not 2024-01-02 (put it in quotes)"),
    ("name: trial", "name: trial\nseed: !!python/object:os.system x", "run.yaml:2: the value 'x' cannot be read"),
    ("name: trial", "name: &a [*a]", "run.yaml:1: an alias refers to the value that it is part of"),
    ("name: trial", "name: trial\n<<: 3", "run.yaml:2: `<<` takes a mapping"),
]


@pytest.mark.parametrize(("old", "new", "expected"), [case for case in CASES if case[2]])
def test_one_mistake_is_one_problem_with_its_line(problems: Problems, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new, 1))
    assert any(line.startswith(expected) for line in found), found


def test_the_same_settings_under_two_names_are_the_same_cell(problems: Problems) -> None:
    text = GOOD.replace("factor: 8.5, mode: mean", "factor: 4.0")
    text = text.replace("{arm: vericache, method: smaller}", "{arm: lossy, method: smaller}")
    assert problems(text) == ["run.yaml:15: the same cell as the one at run.yaml:13 (remove one of them)"]


def test_all_problems_come_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    text = GOOD.replace("limit: 2", "limit: x").replace("factor: 4", "factr: 4").replace("arm: full", "arm: fool")
    found = problems(text, "nope=1", "seed=x")
    assert [line.split(" ")[0] for line in found[:3]] == ["run.yaml:6:", "run.yaml:9:", "run.yaml:12:"]
    assert found[3].startswith("--set nope=1: unknown key")
    assert found[4].startswith("--set seed=x: `seed` must be a whole number")
    assert len(found) == 5


def test_two_tasks_of_one_name(problems: Problems) -> None:
    text = GOOD.replace("methods:", "  - name: probe-task\nmethods:")
    assert problems(text) == ["run.yaml:8: task 'probe-task' is listed twice, first at run.yaml:5 (use a run for each)"]


@pytest.mark.parametrize("key", ["tasks", "cells"])
def test_empty_lists(problems: Problems, key: str) -> None:
    text = "name: a\nmodel: {id: tiny}\ntasks: [{name: probe-task}]\ncells: [{arm: full}]\n"
    lines = [f"{key}: []" if line.startswith(key) else line for line in text.splitlines()]
    number = [line.startswith(key) for line in lines].index(True) + 1
    assert problems("\n".join(lines)) == [f"run.yaml:{number}: `{key}` is empty (list at least one)"]


def test_missing_keys_are_all_named(problems: Problems) -> None:
    found = problems("seed: 1\n")
    assert [line.split("`")[1] for line in found] == ["name", "model", "tasks", "cells"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "run.yaml:1: the file is empty"),
        (b"# only a comment\n", "run.yaml:1: the file is empty"),
        (b"- a\n- b\n", "run.yaml:1: the configuration must be a mapping of keys, not a list"),
        (b"just words\n", "run.yaml:1: the configuration must be a mapping of keys, not the text 'just words'"),
        (b"name: a\nmodel: {id: b\ntasks: []\n", "run.yaml:3: this is not valid YAML"),
        (b"name: a\n\tseed: 1\n", "run.yaml:2: this is not valid YAML"),
        (b"name: a\n---\nname: b\n", "run.yaml:2: this is not valid YAML"),
        (b"name: *nothing\n", "run.yaml:1: this is not valid YAML: found undefined alias"),
        (b"name: a\nseed: \x00\n", "run.yaml:2: this is not valid YAML: the character U+0000 is not allowed"),
        (b"name: a\nseed: \xff\n", "run.yaml:2: the file is not UTF-8 text"),
        (b"\xff\xfen\x00", "run.yaml:1: the file is not UTF-8 text"),
        (b"[" * 20000, "run.yaml:1: the values are nested too deeply"),
    ],
)
def test_files_that_are_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load_config("run.yaml")
    assert str(caught.value.problems[0]).startswith(expected)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: no such file or directory"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: this is a directory"):
        load_config(tmp_path)


def test_aliases_and_merge_keys_may_be_used(load: Load) -> None:
    text = GOOD.replace("small: {compressor: probe, factor: 4}", "small: &m {compressor: probe, factor: 4}")
    text = text.replace("smaller: {compressor: probe, factor: 8.5, mode: mean}", "smaller: {<<: *m, factor: 8.5}")
    methods = load(text).methods
    assert methods["smaller"].options["factor"] == 8.5
    assert methods["small"].options["factor"] == 4.0


def test_alias_bombs_are_refused(problems: Problems) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "more than 100000 values" in problems("\n".join(lines))[0]


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_config(path).name == "trial"


def test_empty_sections_take_their_defaults(load: Load) -> None:
    assert load(GOOD + "engine:\nmetrics:\n").engine.batch_size == 1


def test_cells_that_the_model_cannot_serve_are_reported_with_their_line(problems: Problems) -> None:
    text = GOOD.replace("draft_length: 8", "draft_length: 64").replace("max_tokens: 16", "max_tokens: 64")
    found = problems(text, "sed=1", architecture_of=lambda _: TINY)
    assert found == [
        "run.yaml:7: max_tokens 64 leaves no room for a prompt in the model's context of 64 tokens (lower max_tokens)",
        "run.yaml:14: draft_length 64 does not fit the model's context of 64 tokens (change or remove the cell)",
        "run.yaml:15: compressor `probe` cannot serve this model: more than 8x (change or remove the cell)",
        "--set sed=1: unknown key `sed` in the configuration (did you mean 'seed'?)",
    ]


def test_an_adaptive_draft_length(load: Load, problems: Problems) -> None:
    for written in ("auto", "{}", "{min: 1, max: 40, verify_cost: 4.0}"):
        config = load(GOOD.replace("draft_length: 8", f"draft_length: {written}"))
        assert config.cells[2].draft_length == AdaptiveDraft()
    assert config.cells[2].longest_draft == 40
    twice = GOOD.replace("draft_length: 8", "draft_length: auto").replace("smaller}", "small, draft_length: {max: 40}}")
    assert problems(twice) == ["run.yaml:15: the same cell as the one at run.yaml:14 (remove one of them)"]
    long = GOOD.replace("draft_length: 8", "draft_length: {max: 64}")
    found = problems(long, architecture_of=lambda _: TINY)
    assert found[0].startswith("run.yaml:14: draft_length 64 does not fit the model's context of 64 tokens")


def test_an_unknown_model_is_not_judged(load: Load) -> None:
    assert load(GOOD, architecture_of=lambda _: None).model.id == "tiny"
