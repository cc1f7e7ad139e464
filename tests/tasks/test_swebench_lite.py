"""SWE-bench Lite: rows to prompts, answers to metrics, predictions in the benchmark's own format."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.fake_hub import add_files, serve
from tests.real_data import real
from tests.tasks.swebench.patches import GARBAGE, PROSE
from tests.tasks.words import WordTokenizer
from vcbench import registry
from vcbench.config.options import build_options
from vcbench.errors import TaskError
from vcbench.tasks.base import Answer, Prompt, Question
from vcbench.tasks.source import SAMPLES
from vcbench.tasks.swebench.patch import parse_patch
from vcbench.tasks.swebench.prompt import build_text, shown_files
from vcbench.tasks.swebench_lite import SAMPLE_FILE, Options, SwebenchLiteTask, model_name

SAMPLE_ROWS = [json.loads(line) for line in (SAMPLES / SAMPLE_FILE).read_text().splitlines()]
CLASSIC = ("repo", "instance_id", "base_commit", "patch", "problem_statement")


def prompts_of(limit: int | None = None, **options: Any) -> list[Prompt]:
    return SwebenchLiteTask(Options(**options)).prompts(WordTokenizer(), limit=limit, seed=0)


def question(prompt: Prompt) -> Question:
    """As the records give it back: through JSON."""
    return Question(id=prompt.id, target=json.loads(json.dumps(prompt.target)), meta=prompt.meta)


def answer(text: str) -> Answer:
    return Answer(text=text, token_ids=(), finish_reason="stop")


def score(prompt: Prompt, text: str, reference: str | None = None) -> dict[str, Any]:
    given = None if reference is None else answer(reference)
    return dict(SwebenchLiteTask(Options()).score(question(prompt), answer(text), given))


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture(scope="module")
def sample() -> list[Prompt]:
    return prompts_of()


def test_the_sample_needs_no_options(sample: list[Prompt]) -> None:
    assert registry.lookup("task", "swebench-lite") is SwebenchLiteTask
    assert build_options("task", "swebench-lite", {}) == Options()
    assert len(sample) == len(SAMPLE_ROWS) == 6
    assert all(prompt.meta["synthetic"] for prompt in sample)
    assert all(900 <= len(prompt.ids) <= 4000 for prompt in sample)
    assert prompts_of(limit=2) == sample[:2]


def test_the_samples_prompts_are_those_that_would_be_built_today() -> None:
    for row in SAMPLE_ROWS:
        files = shown_files(row["text"])
        assert files is not None
        assert build_text(row["problem_statement"], files) == row["text"]
        assert parse_patch(row["patch"]).paths <= files.keys()
        assert json.loads(row["FAIL_TO_PASS"])
        assert row["repo"].startswith("vcbench-samples/")


def test_gold_patches_are_perfect(sample: list[Prompt]) -> None:
    for prompt in sample:
        gold = prompt.target["patch"]
        for text in (gold, f"<patch>\n{gold}</patch>", f"Sure.\n```diff\n{gold}```\n"):
            assert score(prompt, text, reference=gold) == {
                "patch_extracted": True,
                "patch_format_rate": True,
                "patch_apply_rate": True,
                "swebench_format_rate": True,
                "swebench_apply_rate": True,
                "file_f1": 1.0,
                "same_patch_as_full": True,
            }


def test_wrong_answers(sample: list[Prompt]) -> None:
    prompt, other = sample[0], sample[1].target["patch"]
    gold = prompt.target["patch"]
    none = ("patch_extracted", "patch_format_rate", "patch_apply_rate", "swebench_format_rate", "swebench_apply_rate")
    nothing = {**dict.fromkeys(none, False), "file_f1": 0.0}
    for text in ("", PROSE, GARBAGE, "```python\nprint()\n```"):
        assert score(prompt, text, reference=gold) == nothing | {"same_patch_as_full": False}
        assert score(prompt, text, reference=PROSE)["same_patch_as_full"] is None
        assert score(prompt, text)["same_patch_as_full"] is None
    truncated = score(prompt, gold[: gold.rindex("+")], reference=gold)
    assert truncated == nothing | {"patch_extracted": True, "same_patch_as_full": False}
    elsewhere = score(prompt, other, reference=other)
    formed = dict.fromkeys(("patch_extracted", "patch_format_rate", "swebench_format_rate", "same_patch_as_full"), True)
    assert elsewhere == nothing | formed


def test_a_diff_that_swebenchs_extractor_loses_is_found_and_both_are_said(sample: list[Prompt]) -> None:
    gold = sample[0].target["patch"]
    found = score(sample[0], f"The code:\n```python\nx = 1\n```\nThe patch:\n{gold}")

    assert (found["patch_apply_rate"], found["file_f1"]) == (True, 1.0)
    assert (found["swebench_format_rate"], found["swebench_apply_rate"]) == (False, False)


def test_hidden_files_leave_application_open(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {**SAMPLE_ROWS[0], "text": "Fix it. There is no code here."})
    (prompt,) = prompts_of(path=path)
    found = score(prompt, prompt.target["patch"])
    assert found["patch_apply_rate"] is None
    assert found["patch_format_rate"] is True


def test_budget_cuts_the_code_and_nothing_else() -> None:
    tokenizer = WordTokenizer()
    task = SwebenchLiteTask(Options(max_context_tokens=900))
    for prompt, row in zip(task.prompts(tokenizer, limit=None, seed=0), SAMPLE_ROWS, strict=True):
        text = tokenizer.decode(prompt.ids)
        assert len(prompt.ids) <= 900
        assert text.endswith("The patch:\n<answer>")
        assert row["problem_statement"] in text
        assert "lines left out]" in text
        for path in shown_files(row["text"]) or ():
            assert f"[start of {path}]" in text
            assert f"[end of {path}]" in text
        assert prompt.meta["code_lines_shown"] < prompt.meta["code_lines"]
        assert score(prompt, row["patch"])["patch_apply_rate"] is True, "tried on the whole files"


def test_prompts_over_the_limit_are_excluded_and_counted() -> None:
    task = SwebenchLiteTask(Options(max_context_tokens=760))
    made = task.prompts(WordTokenizer(), limit=None, seed=0)
    assert 0 < len(made) < 6
    assert len(made) + len(task.excluded) == 6
    assert {each.id for each in task.excluded}.isdisjoint(prompt.id for prompt in made)
    assert "exceed the limit of 760" in task.excluded[0].reason
    with pytest.raises(TaskError, match=r"has no prompts: all 6 are excluded; the first, .*exceed the limit of 10"):
        prompts_of(max_context_tokens=10)


def test_raw_adds_nothing() -> None:
    (prompt,) = prompts_of(limit=1, format="raw")
    assert prompt.ids == tuple(WordTokenizer().encode(SAMPLE_ROWS[0]["text"]))


@pytest.mark.parametrize("missing", CLASSIC)
def test_a_missing_column_is_named(tmp_path: Path, missing: str) -> None:
    bad = {key: value for key, value in SAMPLE_ROWS[1].items() if key != missing}
    path = write(tmp_path / "rows.jsonl", SAMPLE_ROWS[0], bad)
    task = SwebenchLiteTask(Options(path=path))
    assert len(task.prompts(WordTokenizer(), limit=None, seed=0)) == 1
    assert f"rows.jsonl, line 2: field `{missing}`" in task.excluded[0].reason
    assert task.excluded[0].id == ("line-2" if missing == "instance_id" else SAMPLE_ROWS[1]["instance_id"])
    assert len(task.prompts(WordTokenizer(), limit=1, seed=0)) == 1
    assert task.excluded == [], "a row that is not asked is not read"
    alone = write(tmp_path / "alone.jsonl", bad)
    with pytest.raises(TaskError, match=rf"alone.jsonl, line 1: field `{missing}`"):
        prompts_of(path=alone)


def test_bad_rows(tmp_path: Path) -> None:
    row = SAMPLE_ROWS[0]
    file = tmp_path / "rows.jsonl"
    for change, says in (
        ({"text": None}, r"field `text`, the prompt, is missing; .*SWE-bench_Lite_oracle.*`checkouts`"),
        ({"text": ["a"]}, "field `text` must be a text, not list"),
        ({"patch": "prose"}, "field `patch` is not a patch: it names no file"),
        ({"problem_statement": 3}, "field `problem_statement` must be a text, not int"),
    ):
        with pytest.raises(TaskError, match=f"line 1: {says}"):
            prompts_of(path=write(file, row | change))
    with pytest.raises(TaskError, match=r"line 2: instance_id '.*' is that of line 1 already"):
        prompts_of(path=write(file, row, row))
    with pytest.raises(TaskError, match=r"`checkouts` .*nowhere is not a directory"):
        prompts_of(path=write(file, row | {"text": None}), checkouts=str(tmp_path / "nowhere"))


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="path and dataset are two sources"):
        Options(path="a", dataset="b/c")
    with pytest.raises(ValueError, match="split"):
        Options(split="")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub with the embedded sample as a data set of twelve columns and prompts."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SAMPLE_ROWS), file)
    with serve(monkeypatch) as answers:
        add_files(answers, "datasets", "owner/lite", "0" * 40, {"data/test-00000-of-00001.parquet": file.getvalue()})
        yield


@pytest.mark.usefixtures("hub")
def test_rows_of_the_hub(sample: list[Prompt]) -> None:
    found = prompts_of(dataset="owner/lite")
    assert [(prompt.id, prompt.ids, prompt.target) for prompt in found] == [(p.id, p.ids, p.target) for p in sample]
    assert {prompt.meta["source"] for prompt in found} == {"owner/lite"}


def test_predictions_are_what_swebench_reads(sample: list[Prompt], tmp_path: Path) -> None:
    pytest.importorskip("swebench", reason="the extra `swebench` is not installed")
    from swebench.harness.utils import get_predictions_from_file

    answers = [(question(sample[0]), answer(sample[0].target["patch"])), (question(sample[1]), answer(PROSE))]
    (path,) = SwebenchLiteTask(Options()).export("vericache snapkv-4x k=8", answers, tmp_path)
    read = get_predictions_from_file(str(path), "unused", "test")
    assert read == [
        {
            "instance_id": sample[0].id,
            "model_name_or_path": "vericache-snapkv-4x-k-8",
            "model_patch": sample[0].target["patch"],
        },
        {"instance_id": sample[1].id, "model_name_or_path": "vericache-snapkv-4x-k-8", "model_patch": ""},
    ]
    assert model_name("full") == "full"


def test_real_instances_with_prompts() -> None:
    path = real("swebench/lite_oracle_sample.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    tokenizer = WordTokenizer()
    made = SwebenchLiteTask(Options(path=str(path), format="raw")).prompts(tokenizer, limit=None, seed=0)
    assert len(made) == 9
    for prompt, row in zip(made, rows, strict=True):
        assert tokenizer.decode(prompt.ids) == row["text"]
        found = score(prompt, f"<patch>\n{row['patch']}</patch>")
        assert (found["patch_format_rate"], found["patch_apply_rate"], found["file_f1"]) == (True, True, 1.0)
        assert score(prompt, row["patch"][: len(row["patch"]) // 2])["patch_apply_rate"] is False


def test_real_instances_without_prompts_say_what_to_do() -> None:
    path = real("swebench/lite_instances_sample.jsonl")
    with pytest.raises(TaskError, match=r"line 1: field `text`, the prompt, is missing"):
        prompts_of(path=str(path))
