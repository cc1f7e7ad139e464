"""What a token's logit lacks to be taken: by hand, and by raising it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.config.sampling import Sampling
from vcbench.engine.sampling.selector import Selector
from vcbench.engine.types import Request

SETTINGS = [
    Sampling(repetition_penalty=1.4, presence_penalty=0.3),
    Sampling(temperature=0.7, seed=2),
    Sampling(temperature=1.3, top_k=5, seed=3),
    Sampling(temperature=0.9, top_p=0.6, seed=4),
    Sampling(temperature=1.0, min_p=0.2, seed=5),
]


def selector(sampling: Sampling) -> Selector:
    return Selector(Request(id="r", prompt_ids=(1, 2), max_tokens=9, stop_ids=frozenset({3}), sampling=sampling))


@given(seed=st.integers(0, 500), sampling=st.sampled_from(SETTINGS), position=st.integers(0, 8))
def test_the_chosen_token_lacks_nothing_and_others_something(seed: int, sampling: Sampling, position: int) -> None:
    logits = np.random.default_rng(seed).normal(size=24).astype(np.float32)
    rule, output = selector(sampling), list(range(4, 4 + position))
    margins = rule.margins(logits, output, position)
    taken = rule.choose(logits, output, position)

    assert margins[taken] == 0
    assert (np.delete(margins, taken) > 0).all()


@given(seed=st.integers(0, 500), sampling=st.sampled_from(SETTINGS[1:]), token=st.integers(0, 23))
def test_a_logit_raised_by_its_margin_is_taken(seed: int, sampling: Sampling, token: int) -> None:
    """And not where it is raised by less, unless it displaces others; top-p and min-p move with the best logit."""
    logits = np.random.default_rng(seed).normal(size=24).astype(np.float32)
    rule = selector(sampling)
    margin = rule.margins(logits, [], 0)[token]
    raised, short = logits.astype(np.float64), logits.astype(np.float64)
    raised[token] += margin * 1.0001 + 1e-5
    short[token] += margin * 0.999 - 1e-5
    if margin and sampling.top_p == 1 and sampling.min_p == 0:
        assert rule.choose(raised.astype(np.float32), [], 0) == token
        assert sampling.top_k or rule.choose(short.astype(np.float32), [], 0) != token


def test_penalties_by_hand() -> None:
    rule = selector(Sampling(repetition_penalty=2.0, min_tokens=3))
    logits = np.array([1.0, 4.0, -1.0, 9.0, 3.0], np.float32)

    assert rule.margins(logits, [], 0).tolist() == pytest.approx([2.0, 1.0, 5.0, np.inf, 0.0])
    assert rule.margins(logits, [4], 3).tolist() == pytest.approx([8.0, 7.0, 11.0, 0.0, 7.5])
