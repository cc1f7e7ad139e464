"""LongBench-Write: the length score by hand, and the words it counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.real_data import real
from tests.tasks.longform_sets.rows import row, sample
from vcbench.errors import TaskError
from vcbench.tasks.base import Ratio
from vcbench.tasks.longform_sets.longbench_write import LongBenchWrite, count_words, length_score
from vcbench.tasks.rows import read_rows


@pytest.mark.parametrize(
    ("words", "score"),
    [(100, 100), (0, 0), (50, 50), (200, 200 / 3), (400, 0), (1000, 0), (80, 87.5), (33, 0), (130, 90), (1, 0)],
)
def test_length_score(words: int, score: float) -> None:
    assert length_score(required=100, words=words) == pytest.approx(score)


@given(st.integers(1, 10_000), st.integers(0, 100_000))
def test_length_score_is_best_at_the_required_length(required: int, words: int) -> None:
    score = length_score(required=required, words=words)
    assert 0 <= score <= 100
    assert (score == 100) == (words == required)
    nearer = words + (words < required) - (words > required)
    assert length_score(required=required, words=nearer) >= score


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("One two, three.", 3),
        ("don't", 2),
        ("Grüße 12 x2", 0),
        ("一条小路", 4),
        ("一条 path 。", 3),
        ("路path", 1),
    ],
)
def test_words(text: str, words: int) -> None:
    assert count_words(text) == words


def test_the_sample_and_answers_of_the_required_length() -> None:
    for given_row in sample("longbench_write"):
        check(given_row)


def test_real_rows() -> None:
    rows = list(read_rows(real("longform/longbench_write_en_20.jsonl")))
    assert len(rows) == 20
    for given_row in rows:
        check(given_row)


def check(given_row: object) -> None:
    item = LongBenchWrite().item(given_row)  # type: ignore[arg-type]
    length = item.target["length"]
    values = LongBenchWrite().score(item.target, "word " * length, None)
    assert values == {"length_score": 100.0, "words": float(length), "words_ratio": Ratio(length, length)}
    half = LongBenchWrite().score(item.target, "word " * (length // 2), None)["length_score"]
    assert half == pytest.approx(100 * (1 - (length / (length // 2) - 1) / 2))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"prompt": "x"}, "field `length` is missing"),
        ({"prompt": "x", "length": 0}, "field `length` must be a whole number of words, at least 1"),
        ({"prompt": "x", "length": 12.0}, "field `length`"),
        ({"prompt": ["x"], "length": 12}, "field `prompt` must be a text, not list"),
        ({"prompt": "x", "length": 12, "type": 3}, "field `type` must be a text, not int"),
    ],
)
def test_malformed_rows_name_place_and_field(values: dict[str, object], says: str) -> None:
    with pytest.raises(TaskError, match=r"rows\.jsonl, line 3: ") as caught:
        LongBenchWrite().item(row(values))
    assert says in str(caught.value)
