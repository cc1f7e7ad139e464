"""Chained grade-school questions: prompts, the sample's arithmetic, and what each kind of answer is worth."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_hub import add_files, serve
from tests.tasks.words import WordTokenizer
from vcbench import registry
from vcbench.errors import TaskError
from vcbench.tasks.base import Answer, Prompt, Question, Ratio
from vcbench.tasks.gsm8k_long import SAMPLE_FILE, Gsm8kLongTask, Options, results
from vcbench.tasks.rows import read_rows
from vcbench.tasks.source import SAMPLES

ROWS = [row.values for row in read_rows(SAMPLES / SAMPLE_FILE)]


def load(limit: int | None = None, seed: int = 0, **options: Any) -> tuple[Gsm8kLongTask, list[Prompt], WordTokenizer]:
    task, tokenizer = Gsm8kLongTask(Options(**options)), WordTokenizer()
    return task, task.prompts(tokenizer, limit=limit, seed=seed), tokenizer


def question(prompt: Prompt) -> Question:
    target, meta = json.loads(json.dumps([prompt.target, dict(prompt.meta)]))
    return Question(id=prompt.id, target=target, meta=meta)


def answer(text: str) -> Answer:
    return Answer(text=text, token_ids=[], finish_reason="stop")


def gold(prompt: Prompt) -> str:
    """The worked solutions of a prompt's questions in the form that is asked for."""
    solutions = [ROWS[number - 1]["answer"] for number in prompt.meta["rows"]]
    return "\n\n".join(f"Answer {number}: {text}" for number, text in enumerate(solutions, start=1))


def test_registered() -> None:
    assert registry.lookup("task", "gsm8k-long") is Gsm8kLongTask


def test_every_step_of_the_sample_is_right() -> None:
    """The arithmetic of each marked step is done again, and the last one is the result."""
    assert len(ROWS) >= 24
    assert len({row["question"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        steps = re.findall(r"<<([-+*/.\d]+)=([.\d]+)>>", row["answer"])
        assert steps, row
        assert row["answer"].count("<<") == len(steps)
        for expression, value in steps:
            assert evaluated(expression) == Fraction(value), row
        assert Fraction(row["answer"].rpartition("#### ")[2].replace(",", "")) == Fraction(steps[-1][1])


def evaluated(expression: str) -> Fraction:
    """A sum of products, from left to right, in fractions."""
    total = Fraction(0)
    for sign, product in re.findall(r"(^|[-+])([\d.*/]+)", expression):
        factors = re.findall(r"(^|[*/])([\d.]+)", product)
        value = Fraction(1)
        for operation, factor in factors:
            value = value / Fraction(factor) if operation == "/" else value * Fraction(factor)
        total += -value if sign == "-" else value
    return total


@pytest.mark.parametrize("count", [1, 4, 5])
def test_gold_answers_score_full(count: int) -> None:
    task, prompts, _ = load(questions=count)
    assert [number for prompt in prompts for number in prompt.meta["rows"]] == list(range(1, len(ROWS) + 1))
    for prompt in prompts:
        asked = len(prompt.meta["rows"])
        assert prompt.meta["synthetic"] is True
        assert task.score(question(prompt), answer(gold(prompt)), answer(gold(prompt))) == {
            "correct": Ratio(asked, asked),
            "all_correct": True,
            "answered": Ratio(asked, asked),
            "same_as_full": Ratio(asked, asked),
        }


def test_a_wrong_number_costs_one_question_and_a_cut_answer_what_was_cut() -> None:
    task, (prompt, *_), _ = load(limit=1)
    whole = gold(prompt)
    second = prompt.target["results"][1]
    wrong = whole.replace(f"#### {second}", f"#### {second}1")
    values = task.score(question(prompt), answer(wrong), answer(whole))
    assert values == {
        "correct": Ratio(3, 4),
        "all_correct": False,
        "answered": Ratio(4, 4),
        "same_as_full": Ratio(3, 4),
    }
    cut = whole[: whole.index("Answer 3")]
    assert task.score(question(prompt), answer(cut), None) == {
        "correct": Ratio(2, 4),
        "all_correct": False,
        "answered": Ratio(2, 4),
        "same_as_full": None,
    }
    assert task.score(question(prompt), answer(whole), answer(cut))["same_as_full"] == Ratio(2, 2)
    assert task.score(question(prompt), answer(whole), answer("no idea"))["same_as_full"] is None


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ("Answer 1: #### 12\nAnswer 2: #### 1,080", 2, [12, 1080]),
        ("**Answer 2:** #### 7\n### Answer_1 #### $3.50", 2, [Decimal("3.5"), 7]),
        ("Answer 1: 3 + 4 = 7\nAnswer 2: so the answer is **-9** apples, not 8", 2, [7, -9]),
        ("Answer 1: #### 5\nAnswer 1: #### 6", 1, [5]),
        ("Answer 1: #### 5 #### 6", 1, [5]),
        ("Answer 1: I do not know\nAnswer 2: #### 6", 2, [None, 6]),
        ("Answer 9: #### 5", 2, [5, None]),
        ("#### 4 and #### 5", 3, [4, 5, None]),
        ("4 and 5", 2, [None, None]),
        ("The result is 2 x 3 = 6.\n\nQuestion 2: Otto has 9 eggs. #### 9", 1, [6]),
        ("Answer: 18", 1, [18]),
        ("8-5=3", 1, [3]),
        ("It falls to -4 degrees", 1, [-4]),
        ("", 1, [None]),
        ("", 2, [None, None]),
        ("nothing", 1, [None]),
    ],
)
def test_numbers_of_answers(text: str, count: int, wanted: list[Decimal | int | None]) -> None:
    assert results(text, count) == wanted


@given(st.text(alphabet="Answer 12#.,-\n", max_size=60), st.integers(1, 3))
def test_any_text_gives_a_number_or_none_for_each_question(text: str, count: int) -> None:
    assert len(results(text, count)) == count


@pytest.mark.parametrize("loop", ["\n", "#\n", "####\n", "#### ", "answer is ", "\nAnswer 1", "7,", "-", ". . "])
def test_loops_are_read_in_linear_time(loop: str) -> None:
    assert len(results(loop * 50_000, 2)) == 2


def test_what_a_prompt_shows() -> None:
    _, prompts, tokenizer = load(shots=3)
    for prompt in prompts:
        text = tokenizer.decode(prompt.ids)
        assert text.count("Example ") == 3
        assert text.count("####") == 1 + 3
        assert "<<" not in text
        for number in prompt.meta["rows"]:
            assert text.count(ROWS[number - 1]["question"]) == 1, "asked, and not among the examples"
            assert ROWS[number - 1]["answer"].split("\n")[0] not in text
        assert text.endswith(f"Question 4: {ROWS[prompt.meta['rows'][-1] - 1]['question']}<answer>")


def test_examples_come_from_the_seed() -> None:
    again = load(seed=0)[1]
    assert load(seed=0)[1] == again
    assert load(seed=1)[1] != again
    assert load(limit=2)[1] == again[:2]
    assert all(prompt.meta["shots"] == 8 for prompt in again)


@pytest.mark.parametrize("tokens", [700, 1500])
def test_a_context_filled_with_examples(tokens: int) -> None:
    task, prompts, _ = load(context_tokens=tokens, questions=2)
    assert not task.excluded
    for prompt in prompts:
        assert tokens - 300 <= len(prompt.ids) <= tokens
    assert len({prompt.meta["shots"] for prompt in prompts}) > 1


def test_too_few_examples() -> None:
    with pytest.raises(TaskError, match=r"prompt q1-4: all 28 worked examples fill \d+ of context_tokens 100000"):
        load(context_tokens=100_000)
    with pytest.raises(TaskError, match="prompt q1-4: 29 worked examples are wanted, and 28 are there; set `shots`"):
        load(shots=29)


def test_prompts_over_the_limit_are_counted() -> None:
    lengths = [len(prompt.ids) for prompt in load(shots=0)[1]]
    limit = sorted(lengths)[3]
    task, prompts, _ = load(shots=0, max_context_tokens=limit)
    assert sorted([len(prompt.ids) for prompt in prompts] + [n for n in lengths if n > limit]) == sorted(lengths)
    assert len(task.excluded) == sum(length > limit for length in lengths) > 0
    assert re.fullmatch(rf"\d+ tokens exceed the limit of {limit}", task.excluded[0].reason)
    task, prompts, _ = load(context_tokens=limit)
    assert {prompt.meta["shots"] for prompt in prompts} == {0}
    assert task.excluded


def test_examples_of_a_file_of_their_own(tmp_path: Path) -> None:
    asked, shown = tmp_path / "test.jsonl", tmp_path / "train.jsonl"
    asked.write_text(json.dumps({"question": "What is 1 + 1?", "answer": "1 + 1 = <<1+1=2>>2.\n#### 2"}))
    rows = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in (1, 2, 3)]
    shown.write_text("\n".join(map(json.dumps, rows)))
    task, (prompt,), tokenizer = load(path=str(asked), examples=str(shown), shots=2)
    text = tokenizer.decode(prompt.ids)
    assert text.count("What is 1 + 1?") == 1, "a question is never its own example"
    assert "What is 2 + 2?" in text
    assert (prompt.meta["source"], prompt.meta["synthetic"]) == (str(asked), False)
    assert task.score(question(prompt), answer("Answer 1: 2.0"), None)["all_correct"] is True


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "x"}, "field `answer` is missing"),
        ({"question": "", "answer": "#### 1"}, "field `question` is empty"),
        ({"question": "x", "answer": "1"}, "field `answer` must end in `#### ` and a number"),
        ({"question": "x", "answer": "#### many"}, "field `answer` must end"),
        ({"question": "x", "answer": "#### 1 or 2"}, "field `answer` must end"),
        ({"question": 3, "answer": "#### 1"}, "field `question` must be a text, not int"),
    ],
)
def test_malformed_rows_name_line_and_field(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "a", "answer": "#### 1"}) + "\n" + json.dumps(row))
    for options, name in (({"path": str(path)}, "line-2"), ({"examples": str(path)}, "example-line-2")):
        task, prompts, _ = load(limit=1, shots=0, **options)
        assert [(each.id, says in each.reason) for each in task.excluded] == [(name, True)]
        assert task.excluded[0].reason.startswith(f"{path}, line 2: ")
        assert len(prompts) == 1
    only = tmp_path / "only.jsonl"
    only.write_text(json.dumps(row))
    with pytest.raises(TaskError, match="all 1 are excluded") as caught:
        load(path=str(only), shots=0)
    assert says in str(caught.value)


def test_contradictions_and_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shots and context_tokens both set"):
        Options(shots=3, context_tokens=100)
    with pytest.raises(ValueError, match="path and dataset are two sources"):
        Options(path="a", dataset="b/c")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(TaskError, match="hf download --repo-type dataset openai/gsm8k"):
        load(dataset="openai/gsm8k")


def test_questions_and_examples_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Questions come from `test`, examples from `train`, both of the configuration that is asked for."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    card = "---\nconfigs:\n"
    files: dict[str, bytes] = {}
    for config in ("main", "socratic"):
        card += f"- config_name: {config}\n  data_files:\n"
        for split in ("train", "test"):
            card += f"  - split: {split}\n    path: {config}/{split}.jsonl\n"
            rows = [{"question": f"{config} {split} {n}?", "answer": f"#### {n}"} for n in (1, 2)]
            files[f"{config}/{split}.jsonl"] = "\n".join(map(json.dumps, rows)).encode()
    files["README.md"] = f"{card}---\n".encode()
    with serve(monkeypatch) as server:
        add_files(server, "datasets", "openai/gsm8k", "0" * 40, files)
        _, (prompt,), tokenizer = load(dataset="openai/gsm8k", questions=2, shots=2)
    text = tokenizer.decode(prompt.ids)
    assert [text.count(f"main {split} {n}?") for split in ("train", "test") for n in (1, 2)] == [1, 1, 1, 1]
    assert "socratic" not in text
    assert prompt.target == {"results": ["1", "2"]}
    assert prompt.meta["source"] == "openai/gsm8k"
