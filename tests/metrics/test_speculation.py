"""What theory says of drafting: accepted lengths, how divergence adds up, and how it bounds acceptance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.engine.decoding.scripted import VOCABULARY, Distort, decode, prefilled
from vcbench.config.sampling import Sampling
from vcbench.engine.decoding.distributions import kl_per_step
from vcbench.engine.sampling.selector import Selector
from vcbench.engine.types import Request
from vcbench.metrics.divergence import cumulative


@pytest.mark.parametrize("rate", [0.3, 0.8, 0.97])
@pytest.mark.parametrize("length", [1, 4, 30])
def test_accepted_of_a_drafter_that_errs_at_random(rate: float, length: int) -> None:
    """A-SPEC-1: a(1 - a^x) / (1 - a) on average, by the loop itself; within four standard errors."""
    prompts = [(5, n, 4) for n in range(12)]
    drawn = np.random.default_rng(7).random((len(prompts), 600)) < rate

    def erring(right: np.ndarray) -> Distort:
        return lambda drafted, position, token: token if right[position] else (token + 1) % VOCABULARY

    requests = [Request(id=str(prompt), prompt_ids=prompt, max_tokens=500) for prompt in prompts]
    distort = {prompt: erring(right) for prompt, right in zip(prompts, drawn, strict=True)}
    done = decode([prefilled(each) for each in requests], "vericache", length, distort)
    accepted = [each.accepted for one in done for each in one.rounds[:-1] if each.drafted == length]
    expected = rate * (1 - rate**length) / (1 - rate)

    assert abs(np.mean(accepted) - expected) <= 4 * np.std(accepted) / len(accepted) ** 0.5


STEPS, VOCAB = 4000, 50


def pairs(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a full and of a lossy cache, [STEPS, VOCAB]."""
    generator = np.random.default_rng(5)
    full = 2 * generator.standard_normal((STEPS, VOCAB))
    lossy = full + noise * generator.standard_normal((STEPS, VOCAB))
    return full.astype(np.float32), lossy.astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("noise", [0.15, 0.3, 1.0])
def test_divergence_is_never_negative_and_bounds_acceptance(noise: float) -> None:
    """A-SPEC-3, as it holds for drafts that are drawn with the verification's own noise.

    Rejection sampling would accept 1 - T of them, T being total variation and at most sqrt(KL / 2). Shared Gumbel noise
    accepts between (1 - T) / (1 + T) and that, for the sake of the output's bits: here somewhat fewer than
    1 - sqrt(KL / 2) where T is small.
    """
    full, lossy = pairs(noise)
    kl, distance = kl_per_step(full, lossy), np.abs(softmax(full) - softmax(lossy)).sum(axis=1) / 2
    selector = Selector(Request(id="r", prompt_ids=(1,), max_tokens=STEPS, sampling=Sampling(temperature=1.0, seed=3)))
    rows = enumerate(zip(full, lossy, strict=True))
    same = np.mean([selector.choose(p, [], n) == selector.choose(q, [], n) for n, (p, q) in rows])
    error = 4 * (same * (1 - same) / STEPS) ** 0.5

    assert (kl >= 0).all()
    assert (distance <= np.sqrt(kl / 2)).all()
    assert ((1 - distance) / (1 + distance)).mean() - error <= same <= (1 - distance).mean() + error
    assert error < distance.mean() / 2


def test_divergences_of_steps_add_up_to_that_of_whole_outputs() -> None:
    """A-SPEC-3, the chain rule: two steps of a Markov chain against their joint law."""
    generator = np.random.default_rng(2)
    first, second = generator.standard_normal((2, 2, 6)), generator.standard_normal((2, 6, 6))

    def law(side: int) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(first[side, 0]) / np.exp(first[side, 0]).sum()
        q = np.exp(second[side]) / np.exp(second[side]).sum(1, keepdims=True)
        return p, q

    (p, p_next), (q, q_next) = law(0), law(1)
    joint = math.fsum(
        p[a] * p_next[a, b] * math.log(p[a] * p_next[a, b] / (q[a] * q_next[a, b])) for a in range(6) for b in range(6)
    )
    steps = kl_per_step(first[0, :1], first[1, :1])[0], float(p @ kl_per_step(second[0], second[1]))
    total = cumulative(steps)[-1]

    assert total == pytest.approx(joint, rel=1e-9)
