"""What a model thinks is no answer: in every family of tags, however they are left open, and for every task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench import registry
from vcbench.tasks.base import Answer, Question
from vcbench.tasks.reasoning import FAMILIES, Split, split

PATCH = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = {}\n+x = {}\n"


def answer(text: str, prompt_tail: str = "") -> Answer:
    return Answer(text=text, token_ids=[], finish_reason="stop", prompt_tail=prompt_tail)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.opening)
def test_every_family_closed_open_and_begun_by_the_template(family: Any) -> None:
    opening, closing = family.opening, family.closing

    assert answer(f"{opening}\nit is 5{closing}\n\nIt is 7.").text == "It is 7."
    assert answer(f"{opening}it is 5{closing}It is 7.").text == "It is 7."
    assert answer(f"Well. {opening}it is 5{closing} It is 7.").text == "Well.  It is 7."
    unended = answer(f"{opening}\nit is 5")
    assert (unended.text, unended.thought_ended) == ("", False)
    begun = answer(f"it is 5\n{closing}\nIt is 7.", prompt_tail=f"<|im_start|>assistant\n{opening}\n")
    assert (begun.text, begun.thought_ended) == ("It is 7.", True)
    unended = answer("it is 5", prompt_tail=f"{opening}\n")
    assert (unended.text, unended.thought_ended, unended.written) == ("", False, "it is 5")
    if family.lone:
        assert answer(f"it is 5\n{closing}\nIt is 7.").text == "It is 7.", "nobody says that the template began it"
        assert answer(f"it is 5{closing}It is 7.").text == "It is 7."
        assert answer(f"it is 5\n{closing}").text == ""


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>\n\n</think>\n\n7", "7"),
        ("<THINK>5</THINK>7", "7"),
        ("\n <think>5</think>\n7", "7"),
        ("<think>5<think>6</think>7", "7"),
        ("<think>5</think>\nno, 6\n</think>\n7", "7"),
        ("<think>5</think>\n7\n</think>\n", "7\n\n"),
        ("<think>5</think>first\n<think>6</think>second", "first\nsecond"),
        ("<think>5</think>7\n<think>but wait, 6", "7\n"),
        ("<think>I close with `</think>` at the end</think>7", "7"),
        ("<think>it says '</think>' and", ""),
        ('<think>it is "5"\n</think>\n7', "7"),
        ('<think>it is "5"</think>7', "7"),
        ("<think>5</think>\n<answer>\n7\n</answer>", "7\n"),
        ("<answer>7</answer>", "<answer>7</answer>"),
        ("<think>5</think><response>\n7\n</response>\n", "7\n\n"),
        ("<|begin_of_thought|>5<|end_of_thought|>\n\n<|begin_of_solution|>7<|end_of_solution|>", "7"),
        ("<|START_THINKING|>5<|END_THINKING|><|START_RESPONSE|>7<|END_RESPONSE|>", "7"),
        ("<|channel|>analysis<|message|>5<|end|><|start|>assistant<|channel|>final<|message|>7<|return|>", "7"),
        ("<|channel|>analysis<|message|>5<|end|><|start|>assistant<|channel|>final<|message|>7", "7"),
        ("<|channel|>analysis<|message|>is it 5?", ""),
        ("5<|end|><|start|>assistant<|channel|>final<|message|>7", "7"),
        ("analysis it is 5 assistantfinal7", "7"),
        ("analysis of the data: 5", "analysis of the data: 5"),
        ("Here is my thought process:\n5\nHere is my response:\n7", "7"),
        ("Here is my thought process:\n5", ""),
        ("Here are my reasoning steps:\n5\n[BEGIN FINAL RESPONSE]\n7\n[END FINAL RESPONSE]", "7\n"),
        ("<tool_call>5</tool_call>\n</think>\n<tool_call>7</tool_call>", "<tool_call>7</tool_call>"),
        ("7", "7"),
        ("", ""),
        ("  indented", "  indented"),
    ],
)
def test_forms_that_models_write(text: str, right: str) -> None:
    assert split(text).answer == right


@pytest.mark.parametrize(
    "text",
    [
        "Use `<think>` and `</think>` around it.",
        'The code:\n```python\ntext = re.sub(r"<think>.*?</think>", "", text)\n```\n',
        "```diff\n--- a/t\n+++ b/t\n@@ -1,2 +1,3 @@\n+<think>\n </think>\n x\n```\n",
        "--- a/p.py\n+++ b/p.py\n@@ -1 +1 @@\n-    end = '</think>'\n+    end = \"</think>\"\n",
        '<tool_call>\n{"name": "f", "arguments": {"code": "x </think> y"}}\n</tool_call>',
        "a < b and b > c; [think] of it <thinker>",
    ],
)
def test_tags_that_an_answer_speaks_of_are_its_own(text: str) -> None:
    assert split(text) == Split(text)


@given(st.lists(st.sampled_from(["<think>", "</think>", "[THINK]", "[/THINK]", "`", "```\n", "x", "\n", " "])))
def test_spans_and_answer_are_parts_of_the_text_and_nothing_is_left_to_take_out(parts: list[str]) -> None:
    text = "".join(parts)
    found = split(text)
    ends = [end for _, end in found.thoughts]

    assert ends == sorted(ends)
    assert all(0 <= start <= end <= len(text) for start, end in found.thoughts)
    assert len(found.answer) <= len(text) - sum(end - start for start, end in found.thoughts)


def test_a_looping_output_takes_linear_time() -> None:
    for tag in ("<think>", "</think>", "<thinking>x", "\n</think>\n"):
        assert len(split(tag * 20_000).answer) <= len(tag) * 20_000


ARITHMETIC = {"results": ["7"]}
NEEDLE = {"value": "777777", "others": ["555555"]}
LONGGEN = {
    "prefix": "Week 1", "type": "Week", "number": 2, "checks_once": {"2": "concert"}, "checks_range": {},
    "checks_periodic": {},
}  # fmt: skip
COUNTED = {"procedure": "countdown", "numbers": [1, 2], "target": 3}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": %d}}\n</tool_call>'
FUNCTIONS = {"format": "hermes", "signatures": {"f": {"types": {"a": "integer"}, "required": []}}}
CASES = [
    ("gsm8k-long", {}, ARITHMETIC, {}, "Answer 1: #### 5", "Answer 1: #### 7", "correct"),
    ("needle", {}, NEEDLE, {}, "555555", "777777", "found"),
    ("longform", {}, LONGGEN, {"benchmark": "longgenbench"}, "Week 1 #*# Week 2 rain", "Week 1 #*# Week 2 concert",
     "constraints"),
    ("longform", {"benchmark": "longbench-write"}, {"length": 2}, {"benchmark": "longbench-write"}, "a b c d e f",
     "two words", "length_score"),
    ("longform", {"benchmark": "longproc"}, COUNTED, {"benchmark": "longproc"}, "<Solution>\n1 + 1 = 2\n</Solution>",
     "<Solution>\n2 + 1 = 3\n</Solution>", "procedure_score"),
    ("trace", {}, "two words", {}, "other", "two words", "exact_response"),
    ("trace", {}, {"content": "", "tool_calls": [{"name": "f", "arguments": {"a": 7}}]}, {"functions": FUNCTIONS},
     CALL % 5, CALL % 7, "exact_calls"),
    ("swebench-lite", {}, {"patch": PATCH.format(1, 7), "files": {"a.py": "x = 1\n"}}, {}, PATCH.format(2, 5),
     PATCH.format(1, 7), "patch_apply_rate"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "target", "meta", "draft", "right", "metric"), CASES)
def test_every_task_scores_the_answer_and_not_the_thought(
    name: str, options: dict[str, Any], target: Any, meta: dict[str, Any], draft: str, right: str, metric: str
) -> None:
    cls = registry.lookup("task", name)
    task = cls(cls.Options(**options))
    question = Question(id="q", target=target, meta=meta)
    plain = task.score(question, answer(right), answer(right))

    for text, tail in (
        (f"<think>\n{draft}\n</think>\n\n{right}", ""),
        (f"{draft}\n</think>\n\n{right}", ""),
        (f"{draft}\n</think>\n\n{right}", "assistant\n<think>\n"),
        (f"[THINK]{draft}[/THINK]{right}", ""),
        (f"<|channel|>analysis<|message|>{draft}<|end|><|start|>assistant<|channel|>final<|message|>{right}", ""),
    ):
        given = answer(text, tail)
        assert task.score(question, given, given) == plain, text
    assert task.score(question, answer(draft), None)[metric] != plain[metric]
    unended = answer(f"<think>\n{right}")
    assert task.score(question, unended, None)[metric] != plain[metric], "no answer is not a right one"


def test_every_built_in_task_that_scores_is_tried_above_or_in_its_own_tests() -> None:
    scoring = {name for name in registry.names("task") if registry.lookup("task", name).score is not base_score()}

    assert scoring - {case[0] for case in CASES} <= {"complexfuncbench"}


def base_score() -> Any:
    from vcbench.tasks.base import Task

    return Task.score


def test_the_export_holds_the_answers_patch(tmp_path: Path) -> None:
    cls = registry.lookup("task", "swebench-lite")
    question = Question(id="a__a-1", target={"patch": PATCH.format(1, 7), "files": None}, meta={})
    text = f"<think>\n{PATCH.format(1, 5)}\n</think>\n\n{PATCH.format(1, 7)}"
    pairs: Sequence[tuple[Question, Answer]] = [(question, answer(text))]
    path = cls(cls.Options()).export("full", pairs, tmp_path)[0]

    assert "x = 7" in path.read_text("utf-8")
    assert "x = 5" not in path.read_text("utf-8")
