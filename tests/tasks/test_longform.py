"""The task `longform`: sources, options, exclusions, and scores from what the records hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real_data import real
from tests.tasks.words import WordTokenizer
from vcbench import registry
from vcbench.errors import TaskError
from vcbench.tasks.base import Answer, Prompt, Question
from vcbench.tasks.longform import LongformTask, Options

TOM = "longform/longproc_tom_tracking_0.5k_3.json"


def load(limit: int | None = None, **options: Any) -> tuple[LongformTask, list[Prompt]]:
    task = LongformTask(Options(**options))
    return task, task.prompts(WordTokenizer(), limit=limit, seed=0)


def as_recorded(prompt: Prompt) -> Question:
    """The prompt as the records give it back: through JSON."""
    target, meta = json.loads(json.dumps([prompt.target, dict(prompt.meta)]))
    return Question(id=prompt.id, target=target, meta=meta)


def answer(text: str) -> Answer:
    return Answer(text=text, token_ids=[], finish_reason="length")


@pytest.mark.parametrize(
    ("benchmark", "headline"),
    [("longgenbench", "completion_rate"), ("longbench-write", "length_score"), ("longproc", "procedure_score")],
)
def test_registered_with_the_metrics_of_the_benchmark(benchmark: Any, headline: str) -> None:
    task = registry.lookup("task", "longform")(Options(benchmark=benchmark))
    assert [metric.name for metric in task.metrics if metric.headline] == [headline]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 4),
        ({"benchmark": "longbench-write"}, 7),
        ({"benchmark": "longproc"}, 4),
        ({"benchmark": "longproc", "subset": "html_to_tsv_0.5k"}, 3),
        ({"benchmark": "longproc", "subset": "tom_tracking_0.5k"}, 4),
    ],
)
def test_samples_load_offline_and_score_from_records(options: dict[str, Any], count: int) -> None:
    task, prompts = load(**options)
    assert len(prompts) == count
    assert len({prompt.id for prompt in prompts}) == count
    for prompt in prompts:
        assert prompt.meta["synthetic"] is True
        values = task.score(as_recorded(prompt), answer("something else"), answer("something else"))
        assert list(values) == [metric.name for metric in task.metrics]
        assert any(value is not None for value in values.values())


def test_prompts_end_with_the_templates_tail_and_the_prefix() -> None:
    tokenizer = WordTokenizer()
    for prompt in LongformTask(Options()).prompts(tokenizer, limit=None, seed=0):
        assert tokenizer.decode(prompt.ids).endswith(f"{prompt.target['prefix']}<answer>")


def test_real_files() -> None:
    _, prompts = load(path=str(real("longform/longgenbench_short_8.json")))
    assert not any(prompt.meta["synthetic"] for prompt in prompts)
    assert [prompt.meta["number"] for prompt in prompts] == [52, 52, 100, 100, 52, 52, 100, 100]
    _, prompts = load(benchmark="longbench-write", path=str(real("longform/longbench_write_en_20.jsonl")), limit=5)
    assert [prompt.target["length"] for prompt in prompts] == [100, 200, 300, 400, 400]
    path, template = str(real(TOM)), str(real("longform/longproc_tom_tracking_prompts.yaml"))
    task, prompts = load(benchmark="longproc", path=path, template=template)
    assert len(prompts) == 3
    for prompt in prompts:
        gold = answer(prompt.target["right"])
        assert task.score(as_recorded(prompt), gold, gold)["procedure_score"] == 1.0


def test_the_template_beside_the_rows(tmp_path: Path) -> None:
    rows = tmp_path / "tom.json"
    rows.write_text(json.dumps([{"story_components": "", "story": "s", "question": "q", "solution": "- Step 0: y"}]))
    with pytest.raises(TaskError, match=r"tom\.json, row 1: there is no `input_prompt`.* set `template`"):
        load(benchmark="longproc", path=str(rows))
    beside = tmp_path / "prompts.yaml"
    beside.write_text("USER_PROMPT: 'Story: {story} Question: {question}'")
    _, (prompt,) = load(benchmark="longproc", path=str(rows))
    assert prompt.meta["procedure"] == "tom_tracking"
    for text, says in (
        ("- a", "is not a YAML file"),
        ("USER_PROMPT: [1]", "must be a text"),
        ("a: [", "is not a YAML"),
    ):
        beside.write_text(text)
        with pytest.raises(TaskError, match=f"prompts.yaml.* {says}"):
            load(benchmark="longproc", path=str(rows))
    with pytest.raises(TaskError, match=r"absent\.yaml is not a YAML file with a text `USER_PROMPT`"):
        load(benchmark="longproc", path=str(rows), template=str(tmp_path / "absent.yaml"))


def test_prompts_over_the_limit_are_counted() -> None:
    lengths = [len(prompt.ids) for prompt in load()[1]]
    limit = sorted(lengths)[1]
    task, prompts = load(max_context_tokens=limit)
    assert [len(prompt.ids) for prompt in prompts] == [length for length in lengths if length <= limit]
    assert [item.id for item in task.excluded] == [
        f"longgenbench-{number}" for number, length in enumerate(lengths, start=1) if length > limit
    ]
    assert task.excluded[0].reason.endswith(f"tokens exceed the limit of {limit}")
    says = r"task 'longform' has no prompts: all 4 are excluded; the first, longgenbench-1: \d+ tokens exceed the limit"
    with pytest.raises(TaskError, match=says):
        load(max_context_tokens=3)


def test_a_bad_row_costs_no_other_and_none_beyond_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "length": 3}\n{"prompt": "b", "length": 0}\n{\n{"prompt": "c", "length": 1}')
    task, prompts = load(benchmark="longbench-write", path=str(path))
    assert [prompt.id for prompt in prompts] == ["longbench-write-1", "longbench-write-4"]
    assert [each.id for each in task.excluded] == ["longbench-write-2", "longbench-write-3"]
    assert task.excluded[0].reason.startswith(f"{path}, line 2: field `length`")
    task, prompts = load(benchmark="longbench-write", path=str(path), limit=1)
    assert (len(prompts), task.excluded) == (1, [])
    path.write_text('{"prompt": "b", "length": 0}\n')
    with pytest.raises(TaskError, match=r"all 1 are excluded; the first, .*rows\.jsonl, line 1: field `length`"):
        load(benchmark="longbench-write", path=str(path))


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n")
    with pytest.raises(TaskError, match=r"rows\.jsonl has no rows"):
        load(path=str(path))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "a", "dataset": "b/c"}, "path and dataset are two sources"),
        ({"revision": "v1"}, "revision says what to take from a dataset"),
        ({"path": "a", "file": "b"}, "file says what to take from a dataset"),
        ({"subset": "countdown_0.5k"}, "subset belongs to benchmark longproc"),
        ({"template": "x"}, "template belongs to benchmark longproc"),
        ({"benchmark": "longproc", "subset": "pseudo_to_code_2k"}, "'pseudo_to_code_2k' is none of countdown, html_to"),
        (
            {"benchmark": "longproc", "subset": "countdown_2k"},
            "needs path or dataset: the embedded sample has 0.5k only",
        ),
        ({"benchmark": "longproc", "subset": "countdown_4k"}, "with one of _0.5k, _2k, _8k"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Options(**options)


def test_offline_the_hub_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for options in ({}, {"file": "countdown.json"}):
        with pytest.raises(TaskError, match="hf download --repo-type dataset PrincetonPli/LongProc"):
            load(benchmark="longproc", dataset="PrincetonPli/LongProc", **options)
