"""One row's choice: noise, the order of steps against transformers, ties, and what a choice may depend on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers.generation import logits_process as hf

from vcbench.config.sampling import Sampling
from vcbench.engine.decoding.levels import Span
from vcbench.engine.decoding.progress import Progress
from vcbench.engine.decoding.stopping import check_request
from vcbench.engine.kernels.cpu.gumbel import gumbel, gumbel_arg_max
from vcbench.engine.sampling import processors
from vcbench.engine.sampling.noise import Noise
from vcbench.engine.sampling.selector import Selector
from vcbench.engine.types import Request
from vcbench.errors import RequestError

V = 101
PROMPT = (5, 9, 9, 40)
STOPS = frozenset({7, 50, 1000})
"""One stop id is outside the vocabulary, as some models' are."""
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 2.5},
    "top_k": {"temperature": 1.0, "top_k": 12},
    "top_k_1": {"temperature": 1.0, "top_k": 1},
    "top_k_beyond": {"temperature": 1.0, "top_k": 5000},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "top_p_tiny": {"temperature": 1.0, "top_p": 1e-9},
    "top_p_wide": {"temperature": 3.0, "top_p": 0.999},
    "min_p": {"temperature": 1.0, "min_p": 0.07},
    "min_p_1": {"temperature": 1.0, "min_p": 1.0},
    "repetition": {"temperature": 1.0, "repetition_penalty": 1.3},
    "repetition_reward": {"temperature": 1.0, "repetition_penalty": 0.8},
    "presence": {"temperature": 1.0, "presence_penalty": 0.75},
    "frequency": {"temperature": 1.0, "frequency_penalty": 0.5},
    "bias": {"temperature": 1.0, "logit_bias": {3: 2.5, 60: -100.0, 7: 4.0}},
    "min_tokens": {"temperature": 1.0, "min_tokens": 4},
    "filters": {"temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "everything": {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.25,
        "logit_bias": {11: 1.5, 50: 6.0},
        "min_tokens": 4,
    },
}
settings = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def selector(key: str = "r", prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> Selector:
    return Selector(Request(id=key, prompt_ids=prompt, max_tokens=99, stop_ids=STOPS, sampling=Sampling(**sampling)))


def logits(seed: int, size: int = V) -> NDArray[np.float32]:
    return (2 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def history(seed: int, size: int) -> list[int]:
    return np.random.default_rng(900 + seed).integers(0, 30, size).tolist()


def reference(row: NDArray[np.float32], output: Sequence[int], sampling: Sampling) -> NDArray[np.float64]:
    """Probabilities by transformers' own processors in their own order, in float64; other penalties written out."""
    ids = torch.tensor([[*PROMPT, *output]])
    scores = torch.from_numpy(row.astype(np.float64))[None]
    if sampling.logit_bias:
        bias = [[[token], value] for token, value in sampling.logit_bias.items()]
        scores = hf.SequenceBiasLogitsProcessor(bias)(ids, scores)
    if sampling.repetition_penalty != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
    for token in range(len(row)):
        count = list(output).count(token)
        scores[0, token] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    if sampling.min_tokens:
        stops = sorted(STOPS)
        scores = hf.MinNewTokensLengthLogitsProcessor(len(PROMPT), sampling.min_tokens, stops)(ids, scores)
    scores = hf.TemperatureLogitsWarper(sampling.temperature)(ids, scores)
    if sampling.top_k:
        scores = hf.TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p < 1:
        scores = hf.TopPLogitsWarper(sampling.top_p)(ids, scores)
    if sampling.min_p:
        scores = hf.MinPLogitsWarper(sampling.min_p)(ids, scores)
    probabilities: NDArray[np.float64] = torch.softmax(scores[0], dim=-1).numpy()
    return probabilities


@settings
@pytest.mark.parametrize("length", [0, 3, 4, 60])
def test_probabilities_are_those_of_transformers(setting: dict[str, Any], length: int) -> None:
    for seed in range(8):
        row, output = logits(seed), history(seed, length)
        found = selector(**setting).law(row, output, length)
        np.testing.assert_allclose(found, reference(row, output, Sampling(**setting)), rtol=1e-12, atol=1e-15)


@settings
def test_no_setting_is_without_effect(setting: dict[str, Any]) -> None:
    neutral = {"temperature": 1.0}
    if setting in (neutral, SETTINGS["top_k_beyond"]):
        return
    row, output = logits(3), history(3, 3)
    assert np.abs(selector(**setting).law(row, output, 3) - selector(**neutral).law(row, output, 3)).max() > 1e-4


@settings
def test_a_choice_is_the_arg_max_of_log_probabilities_and_noise(setting: dict[str, Any]) -> None:
    """The noise written out in numpy, for every token of the vocabulary."""
    chosen_by = selector(seed=5, **setting)
    for seed in range(30):
        row, output = logits(seed), history(seed, seed)
        v = ((Noise(5, "r").words(seed, V) >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52
        with np.errstate(divide="ignore"):
            perturbed = np.log(chosen_by.law(row, output, seed)) - np.log(-np.log1p(-v))
        assert chosen_by.choose(row, output, seed) == perturbed.argmax()


@settings
def test_temperature_0_takes_the_best_of_what_the_penalties_leave(setting: dict[str, Any]) -> None:
    """Filters change nothing then: they keep the best token."""
    greedy = replace(Sampling(**setting), temperature=0.0)
    whole = replace(greedy, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    for seed in range(20):
        row, output = logits(seed), history(seed, seed)
        chosen = Selector(Request(id="r", prompt_ids=PROMPT, max_tokens=99, stop_ids=STOPS, sampling=greedy))
        assert chosen.choose(row, output, seed) == reference(row, output, whole).argmax()
        assert chosen.law(row, output, seed)[chosen.choose(row, output, seed)] == 1


def test_greedy_leaves_the_choice_to_the_engine() -> None:
    assert selector().takes_best
    assert selector(top_k=5, top_p=0.5, min_p=0.5, seed=3).takes_best
    for name, setting in SETTINGS.items():
        assert not selector(**setting).takes_best, name
    for setting in ({"presence_penalty": 0.1}, {"frequency_penalty": 0.1}, {"repetition_penalty": 1.1}):
        assert not selector(**setting).takes_best
    assert not selector(min_tokens=1).takes_best
    assert not selector(logit_bias={1: 0.0}).takes_best


@pytest.mark.parametrize("size", [1, 2, 3, 5, 300])
def test_equal_logits(size: int) -> None:
    """The first of equals at temperature 0; all k-th equals survive top-k; top-p takes equals in order."""
    row = np.zeros(size, np.float32)
    assert selector(prompt=(), logit_bias={0: 0.0}).choose(row, [], 0) == 0
    assert np.count_nonzero(selector(prompt=(), temperature=1.0, top_k=1).law(row, [], 50)) == size
    kept = np.flatnonzero(selector(prompt=(), temperature=1.0, top_p=0.5).law(row, [], 50))
    assert kept.tolist() == list(range(math.ceil(size / 2)))


@given(st.lists(st.integers(-40, 0), min_size=1, max_size=60), st.floats(0.001, 0.999))
def test_top_p_keeps_the_fewest_that_suffice(values: list[int], mass: float) -> None:
    """Brute force over prefixes of the sorted row, on scores with many ties and tails of every weight."""
    scores = np.array(values, np.float64) - max(values)
    weights = np.exp(scores) / np.exp(scores).sum()
    order = sorted(range(len(values)), key=lambda token: (-weights[token], token))
    sums = np.cumsum(weights[order])
    kept = processors.nucleus(scores, mass)

    assert kept.tolist() == sorted(order[: len(kept)])
    assert sums[len(kept) - 1] >= mass - 1e-12
    assert len(kept) == 1 or sums[len(kept) - 2] < mass + 1e-12


def test_top_p_finds_its_mass_however_flat_the_row() -> None:
    for spread in (0.0, 0.1, 1.0, 8.0, 60.0):
        row = np.linspace(-spread, 0, 5000)
        weights = np.exp(row)
        kept = processors.nucleus(row, 0.9)
        assert weights[kept].sum() >= 0.9 * weights.sum() > weights[kept[1:]].sum()


def test_extreme_numbers_give_a_choice() -> None:
    """Logits at the edge of float32, temperatures from subnormal to huge; no overflow turns into NaN."""
    row = logits(1)
    row[[4, 9, 30]] = [3.4e38, -3.4e38, 3.39e38]
    for temperature in (5e-324, 1e-30, 1.0, 1e300):
        for more in ({}, {"repetition_penalty": 100.0}, {"repetition_penalty": 0.01}, {"top_p": 0.5, "min_p": 0.1}):
            law = selector(temperature=temperature, **more).law(row, [4, 9], 2)
            assert np.isfinite(law).all()
            assert abs(law.sum() - 1) < 1e-12
            assert law[selector(temperature=temperature, **more).choose(row, [4, 9], 2)] > 0
    assert selector(temperature=5e-324).choose(row, [], 0) == 4


def test_stop_ids_wait_for_min_tokens() -> None:
    eager = selector(temperature=1.0, min_tokens=3, logit_bias={7: 100.0})
    for position in range(3):
        assert eager.law(logits(0), [1] * position, position)[[7, 50]].max() == 0
    assert eager.choose(logits(0), [1, 1, 1], 3) == 7


@settings
def test_a_choice_depends_on_nothing_else(setting: dict[str, Any]) -> None:
    """Neither on earlier choices, nor on where a row lies in memory, nor on the object that chooses."""
    rows = np.stack([logits(seed) for seed in range(9)])
    once = [selector(**setting).choose(row, history(1, 5), i) for i, row in enumerate(rows)]
    other = selector(**setting)
    padded = np.zeros((9, V + 3), np.float32)
    padded[:, 3:] = rows
    again = [(i, other.choose(padded[i, 3:], tuple(history(1, 5)), i)) for i in reversed(range(9))]
    assert [token for _, token in sorted(again)] == once


def test_prompts_count_for_repetition_alone() -> None:
    row = np.ones(V, np.float32)
    assert selector(temperature=1.0, presence_penalty=1.0, frequency_penalty=1.0).law(row, [], 0).std() < 1e-17
    repeated = selector(temperature=1.0, repetition_penalty=2.0).law(row, [17], 1)
    assert set(np.flatnonzero(repeated < repeated.max())) == {*PROMPT, 17}


def test_noise_is_keyed_by_seed_request_and_position() -> None:
    first = Noise(0, "r").words(3, 1000)
    assert (Noise(0, "r").words(3, 1000) == first).all()
    assert (Noise(0, "r").words(3, 10) == first[:10]).all()
    others = [Noise(1, "r").words(3, 1000), Noise(0, "s").words(3, 1000), Noise(0, "r").words(4, 1000)]
    others += [Noise(0, "r").words(0, 1000), Noise(10, "r").words(3, 1000), Noise(0, "\ud800").words(3, 1000)]
    seen = np.concatenate([first, *others])
    assert len(np.unique(seen)) == len(seen)


def philox(key: tuple[int, int], counter: list[int]) -> list[int]:
    """Philox4x64-10, written out from the paper."""
    k, c, low = list(key), counter, 2**64 - 1
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(second >> 64) ^ c[1] ^ k[0], second & low, (first >> 64) ^ c[3] ^ k[1], first & low]
        k = [(k[0] + 0x9E3779B97F4A7C15) & low, (k[1] + 0xBB67AE8584CAA73B) & low]
    return c


@pytest.mark.parametrize("position", [0, 1, 77, 2**40])
def test_noise_is_philox_of_a_hashed_key(position: int) -> None:
    """Recorded runs can be drawn again, here or elsewhere: block n of four words has the counter [n + 1, position]."""
    digest = hashlib.sha256(b"sampling:3:some request").digest()
    key = (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little"))
    blocks = [philox(key, [block + 1, position, 0, 0]) for block in range(3)]
    assert Noise(3, "some request").words(position, 12).tolist() == [word for block in blocks for word in block]
    assert Noise(0, "r").words(0, 2).tolist() == [4751384673667650154, 16291430472707730285]


@pytest.mark.parametrize("word", [0, 4095, 4096, 2**63, 2**64 - 1])
def test_noise_of_every_word_is_finite(word: int) -> None:
    v = ((word >> 12) + 0.5) / 2**52
    assert 0 < v < 1
    assert math.isclose(gumbel(np.uint64(word)), -math.log(-math.log1p(-v)), rel_tol=1e-14)
    assert -4 < gumbel(np.uint64(word)) < 37


def test_noise_follows_the_gumbel_distribution() -> None:
    """Kolmogorov-Smirnov over 200,000 words; 2.5 / sqrt(n) is exceeded with probability 7e-6."""
    words = Noise(2, "r").words(0, 200_000)
    drawn = np.sort([gumbel(word) for word in words])
    expected = np.exp(-np.exp(-drawn))
    assert np.abs(expected - np.arange(len(drawn)) / len(drawn)).max() < 2.5 / len(drawn) ** 0.5


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
def test_skipping_hopeless_tokens_changes_no_choice(spread: float) -> None:
    rng = np.random.default_rng(0)
    for trial in range(200):
        scores = spread * rng.standard_normal(64)
        scores[rng.integers(0, 64, 5)] = -np.inf
        ids = np.sort(rng.permutation(500)[:64])
        words = rng.integers(0, 2**64, 500, np.uint64)
        if trial % 4 == 0:
            words[ids[3]] = words[ids[60]] = np.uint64(trial)
        perturbed = scores + [gumbel(word) for word in words[ids]]
        assert gumbel_arg_max(scores, ids, words) == ids[perturbed.argmax()]


def test_the_first_of_equal_draws_and_none_of_nothing() -> None:
    same = np.full(4, 9 << 40, np.uint64)
    assert gumbel_arg_max(np.zeros(4), np.arange(4), same) == 0
    assert gumbel_arg_max(np.full(4, -np.inf), np.arange(4), same) == -1


@settings
def test_gumbel_noise_draws_from_the_softmax(setting: dict[str, Any]) -> None:
    """P(i wins) = integral of the density of score_i + noise times the chance that all others stay below.

    By the trapezoidal rule, which converges exponentially here, to a total variation below 1e-12.
    """
    law = selector(**setting).law(logits(2), history(2, 5), 5)
    kept = np.flatnonzero(law > 1e-30)
    scores = np.log(law[kept])
    x = np.arange(-12, 60, 1 / 64)
    below = np.exp(-np.exp(-(x[:, None] - scores)))
    density = np.exp(-(x[:, None] - scores))
    wins = (density * below.prod(axis=1, keepdims=True)).sum(axis=0) / 64
    assert 0.5 * np.abs(wins - law[kept]).sum() < 1e-12


def test_a_span_knows_what_precedes_each_row() -> None:
    progress = Progress(Request(id="r", prompt_ids=PROMPT, max_tokens=99))
    progress.commit([1, 2, 3], torch.zeros(3, 5))
    verify, draft = Span(progress, [4, 5], rows=3), Span(progress, [4, 5])

    assert verify.token_ids == [3, 4, 5]
    assert [verify.output_before(row) for row in range(3)] == [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert [verify.position(row) for row in range(3)] == [3, 4, 5]
    assert (draft.token_ids, draft.output_before(0), draft.position(0)) == ([5], [1, 2, 3, 4, 5], 5)
    assert (Span(progress).token_ids, Span(progress).output_before(0)) == ([3], [1, 2, 3])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be finite and at least 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1; it must be finite and at least 0"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be finite and above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"min_p": 1.01}, "min_p is 1.01; it must be finite and at least 0 and at most 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be finite and at least 0.01 and at most 100"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1"),
        ({"logit_bias": {3: -101.0}}, "logit_bias is"),
        ({"logit_bias": {3: math.nan}}, "logit_bias is"),
        ({"logit_bias": {V: 1.0}}, "logit_bias names token 101, outside the vocabulary of 101"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias names token -1"),
        ({"min_tokens": 100}, "min_tokens 100 is above max_tokens 99"),
        ({"seed": -1}, "seed is -1; it must be finite and at least 0"),
    ],
)
def test_sampling_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    request = Request(id="r", prompt_ids=PROMPT, max_tokens=99, sampling=Sampling(**wrong))
    with pytest.raises(RequestError, match=r"^request r: ") as caught:
        check_request(request, vocab_size=V, max_context=200)
    assert message in str(caught.value)


@settings
def test_sampling_that_makes_sense_is_not(setting: dict[str, Any]) -> None:
    request = Request(
        id="r", prompt_ids=PROMPT, max_tokens=99, stop_ids=STOPS, sampling=Sampling(**setting, seed=2**63)
    )
    check_request(request, vocab_size=V, max_context=200)


def test_all_tokens_stop_and_none_may() -> None:
    everything = frozenset(range(V))
    request = Request(id="r", prompt_ids=PROMPT, max_tokens=9, stop_ids=everything, sampling=Sampling(min_tokens=1))
    with pytest.raises(RequestError, match="min_tokens forbids every token"):
        check_request(request, vocab_size=V, max_context=200)
