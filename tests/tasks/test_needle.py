"""Needles: where they stand, how long prompts are, and which answers count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.words import WordTokenizer
from vcbench import registry
from vcbench.errors import TaskError
from vcbench.tasks.base import Answer, Prompt, Question
from vcbench.tasks.needle import Needle, NeedleTask, Options, document


def load(limit: int | None = None, seed: int = 0, **options: Any) -> tuple[NeedleTask, list[Prompt], WordTokenizer]:
    task, tokenizer = NeedleTask(Options(**({"lengths": (400,)} | options))), WordTokenizer()
    return task, task.prompts(tokenizer, limit=limit, seed=seed), tokenizer


def question(prompt: Prompt) -> Question:
    target, meta = json.loads(json.dumps([prompt.target, dict(prompt.meta)]))
    return Question(id=prompt.id, target=target, meta=meta)


def answer(text: str) -> Answer:
    return Answer(text=text, token_ids=[], finish_reason="stop")


def test_registered() -> None:
    assert registry.lookup("task", "needle") is NeedleTask


@pytest.mark.parametrize("noise", ["prose", "repeat"])
@pytest.mark.parametrize("length", [200, 1000])
def test_the_needle_stands_where_it_should(noise: str, length: int) -> None:
    _, prompts, tokenizer = load(noise=noise, lengths=(length,))
    assert [prompt.meta["position"] for prompt in prompts] == [0.0, 0.25, 0.5, 0.75, 1.0]
    for prompt in prompts:
        assert length - 60 <= len(prompt.ids) <= length
        text, value, position = tokenizer.decode(prompt.ids), prompt.target["value"], prompt.meta["position"]
        assert text.count(value) == 1
        assert all(text.count(other) == 1 for other in prompt.target["others"])
        assert len(prompt.target["others"]) == 2
        assert tokenizer.decode([prompt.ids[prompt.meta["answer_token"]]]) == value
        body = text.removeprefix("<turn>user").rpartition("\n\nWhat is the number of the ")[0]
        at = body.index(value)
        if position == 0:
            assert body.startswith("The number of the ")
            assert body.index("\n") > at, "the document's very first words, right after the template's"
        elif position == 1:
            assert body.endswith(f" is {value}.")
        else:
            assert abs(at / len(body) - position) < 0.15


def test_positions_share_everything_else() -> None:
    _, prompts, tokenizer = load()
    assert len({(prompt.target["value"], *prompt.target["others"]) for prompt in prompts}) == 1
    sentences = set()
    for prompt in prompts:
        text, value = tokenizer.decode(prompt.ids), prompt.target["value"]
        needle = next(line for line in text.split("\n") if line.endswith(f" is {value}."))
        sentences.add(needle.removeprefix("<turn>user"))
        name = needle.removeprefix("<turn>user").removeprefix("The number of the ").split(" is ")[0]
        assert text.endswith(f"\n\nWhat is the number of the {name}? Answer with the number alone.<answer>")
    assert len(sentences) == 1


def test_order_ids_and_seed() -> None:
    _, prompts, _ = load(lengths=(200, 300), positions=(1.0, 0.0), samples=2)
    assert [prompt.id for prompt in prompts] == [
        "200-at-1-0",
        "200-at-0-0",
        "300-at-1-0",
        "300-at-0-0",
        "200-at-1-1",
        "200-at-0-1",
        "300-at-1-1",
        "300-at-0-1",
    ]
    assert load(lengths=(200, 300), positions=(1.0, 0.0), samples=2, limit=3)[1] == prompts[:3]
    assert len({prompt.target["value"] for prompt in prompts}) == 4
    assert load(seed=1)[1] != load(seed=0)[1] == load(seed=0)[1]


def test_many_needles_and_one() -> None:
    _, (prompt, *_), tokenizer = load(needles=8, noise="repeat")
    assert tokenizer.decode(prompt.ids).count("The number of the ") == 8
    assert len({prompt.target["value"], *prompt.target["others"]}) == 8
    _, (prompt, *_), tokenizer = load(needles=1, noise="repeat")
    assert prompt.target["others"] == []


def score(text: str, reference: str | None = None) -> dict[str, Any]:
    task = NeedleTask(Options())
    asked = Question(id="x", target={"value": "123456", "others": ["654321"]}, meta={"position": 0.5})
    return dict(task.score(asked, answer(text), answer(reference) if reference is not None else None))


@pytest.mark.parametrize(
    ("text", "found", "mentioned", "confused"),
    [
        ("123456", True, True, False),
        ("The number is 123,456.", True, True, False),
        ("654321", False, False, True),
        ("654321, no, 123456", False, True, True),
        ("123456, not 654321", True, True, False),
        ("1234567", False, False, False),
        ("0123456", False, False, False),
        ("12345", False, False, False),
        ("", False, False, False),
        ("none", False, False, False),
    ],
)
def test_which_answers_count(text: str, found: bool, mentioned: bool, confused: bool) -> None:
    values = score(text)
    assert (values["found"], values["mentioned"], values["confused"]) == (found, mentioned, confused)


def test_agreement_with_full_kv() -> None:
    assert set(score("")) == {metric.name for metric in NeedleTask.metrics}
    assert score("5", "It is 5.")["same_as_full"] is True
    assert score("6", "It is 5.")["same_as_full"] is False
    assert score("", "It is 5.")["same_as_full"] is False
    assert score("6", "unknown")["same_as_full"] is None
    assert score("6")["same_as_full"] is None


def test_gold_answers_from_the_records() -> None:
    task, prompts, _ = load()
    for prompt in prompts:
        values = task.score(question(prompt), answer(prompt.target["value"]), None)
        assert values["found"] is True
        assert values["confused"] is False


@given(st.lists(st.sampled_from(["x ", "y\n"]), min_size=1, max_size=9), st.lists(st.floats(0, 1), max_size=4))
def test_the_asked_needle_is_outermost(noise: list[str], places: list[float]) -> None:
    others = [Needle(f"o{i}", f"{i}", place) for i, place in enumerate(places)]
    for position in (0.0, 1.0):
        asked = Needle("asked", "7", position)
        text = document(noise, [asked, *others])
        sentence = asked.sentence.strip()
        assert text.startswith(sentence) if position == 0 else text.endswith(sentence)
        assert all(text.count(needle.sentence.strip()) == 1 for needle in (asked, *others))
        kept = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("The number of the "))
        assert kept.split() == "".join(noise).split()


def test_lengths_that_cannot_be_met() -> None:
    with pytest.raises(TaskError, match=r"prompt 30-at-0-0: 30 tokens hold no noise beside the needles; raise"):
        load(lengths=(30,))
    with pytest.raises(TaskError, match=r"the prose ends below 2000000 tokens; use `noise: repeat`"):
        load(lengths=(2_000_000,), limit=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"positions": ()}, "positions must be numbers from 0 to 1"),
        ({"positions": (0.0, 1.5)}, "positions must be numbers from 0 to 1"),
        ({"positions": (float("nan"),)}, "positions must be numbers from 0 to 1"),
        ({"positions": (0.5, 0.5)}, "must differ from each other"),
        ({"lengths": ()}, "lengths must be whole numbers above 0"),
        ({"lengths": (0,)}, "lengths must be whole numbers above 0"),
        ({"needles": 1000}, "needles must be 1 to 144"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Options(**options)
