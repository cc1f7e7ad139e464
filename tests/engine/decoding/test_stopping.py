"""Stop conditions one token at a time, and requests that cannot be served."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.engine.decoding.stopping import StopRule, accepted_prefix, check_request
from vcbench.engine.types import FinishReason, Request
from vcbench.errors import RequestError


def request(**values: object) -> Request:
    return Request(**{"id": "r", "prompt_ids": (1,), "max_tokens": 100, **values})


class Pieces:
    """A stream whose token i has the text pieces[i]."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]


def ends(rule: StopRule, ids: Sequence[int]) -> tuple[int, FinishReason] | None:
    """After how many tokens the rule ends the output, and why."""
    for count, token in enumerate(ids, start=1):
        if reason := rule.push(token):
            return count, reason
    return None


@given(
    st.lists(st.text("ab", max_size=4), min_size=1, max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3),
)
def test_a_stop_string_ends_with_the_first_token_that_completes_one(pieces: list[str], stops: list[str]) -> None:
    rule = StopRule(request(stop_strings=tuple(stops)), lambda: Pieces(pieces))
    texts = ["".join(pieces[:count]) for count in range(1, len(pieces) + 1)]
    expected = next((i for i, text in enumerate(texts, start=1) if any(stop in text for stop in stops)), None)

    assert ends(rule, range(len(pieces))) == (None if expected is None else (expected, "stop"))


def test_a_stop_wins_over_the_cap_on_the_same_token() -> None:
    assert ends(StopRule(request(max_tokens=3, stop_ids=frozenset({7})), None), [1, 2, 7, 7]) == (3, "stop")
    assert ends(StopRule(request(max_tokens=3, stop_ids=frozenset({7})), None), [1, 2, 3, 7]) == (3, "length")
    rule = StopRule(request(max_tokens=2, stop_strings=("ab",)), lambda: Pieces(["a", "b"]))
    assert ends(rule, [0, 1]) == (2, "stop")


@pytest.mark.parametrize("stop", ["b", "ab", "abc", "abcd", "abcdefgh"])
@pytest.mark.parametrize("before", ["", "x", "ab", "abcabc", "aaaaaaaaa"])
def test_a_stop_string_may_come_letter_by_letter(stop: str, before: str) -> None:
    """Even when the longest of all comes so, one more letter with every token."""
    text = before + stop
    rule = StopRule(request(stop_strings=(stop, "z" * len(stop))), lambda: Pieces(text))

    assert ends(rule, range(len(text))) == (text.index(stop) + len(stop), "stop")


def test_a_stop_string_may_come_out_of_the_middle_of_a_token() -> None:
    rule = StopRule(request(stop_strings=("\n\n",)), lambda: Pieces(["a\n", "\nb"]))

    assert ends(rule, [0, 1]) == (2, "stop")


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="request r: stop strings need a tokenizer"):
        StopRule(request(stop_strings=("x",)), None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt_ids": ()}, "the prompt is empty; give at least one token"),
        ({"max_tokens": 0}, "max_tokens is 0; ask for at least 1"),
        ({"max_tokens": -1}, "max_tokens is -1; ask for at least 1"),
        ({"prompt_ids": (1, 50)}, "token id 50 is outside the vocabulary of 50"),
        ({"prompt_ids": (1, -1)}, "token id -1 is outside the vocabulary of 50"),
        ({"prompt_ids": (1,) * 10, "max_tokens": 91}, r"10 prompt tokens \+ max_tokens 91 = 101 exceed .* of 100"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=f"request r: {message}"):
        check_request(request(**values), vocab_size=50, max_context=100)


def test_a_request_at_every_limit_is_served() -> None:
    check_request(request(prompt_ids=(0, 49), max_tokens=98), vocab_size=50, max_context=100)


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(-1, 2), min_size=10, max_size=10))
def test_the_accepted_prefix(drafts: list[int], targets: list[int]) -> None:
    count = accepted_prefix(drafts, targets)

    assert drafts[:count] == targets[:count]
    assert count == len(drafts) or drafts[count] != targets[count]
