"""Steps from a row of logits to the scores of the tokens that may be drawn: float64, one row at a time.

Source: transformers, generation/logits_process.py (bias, repetition penalty, minimum length, temperature, top-k, top-p,
min-p, in this order); presence and frequency penalties as vLLM's apply_penalties, which are OpenAI's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Ids = NDArray[np.int64]

REACHES = (4.0, 10.0, 20.0, math.inf)
"""How far below the largest score top-p looks, one after the other until it has its mass: few tokens get sorted."""


def divide_repeated(scores: Scores, seen: Ids, penalty: float) -> None:
    """Repetition penalty, in place, of the tokens `seen` in prompt or output; each once."""
    found = scores[seen]
    scores[seen] = np.where(found < 0, found * penalty, found / penalty)


def subtract_counts(scores: Scores, output: Sequence[int], frequency: float, presence: float) -> None:
    """Frequency penalty for each occurrence in the output and presence penalty for any, in place."""
    ids, counts = np.unique(np.asarray(output, np.int64), return_counts=True)
    scores[ids] -= frequency * counts
    scores[ids] -= presence


def scale(scores: Scores, temperature: float) -> Scores:
    """Scores over temperature, the largest moved to 0: a shift changes no choice, and so nothing overflows upwards."""
    with np.errstate(over="ignore"):
        scaled: Scores = (scores - scores.max()) / temperature
    return scaled


def best_k(scores: Scores, count: int) -> Ids:
    """Ids of the `count` largest scores and of all that equal the least of them, ascending."""
    if count >= len(scores):
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, -count)[-count])


def nucleus(scores: Scores, mass: float) -> Ids:
    """Ids of the fewest largest scores whose softmax sums to at least `mass`, ascending; of equals the first ones.

    scores: relative to the largest.
    """
    weights = np.exp(scores)
    target = mass * weights.sum()
    for reach in REACHES:
        close = np.flatnonzero(scores >= -reach)
        order = close[np.argsort(-weights[close], kind="stable")]
        reached = np.cumsum(weights[order])
        if reached[-1] >= target:
            break
    return np.sort(order[: int(np.searchsorted(reached, target)) + 1])


def near_best(scores: Scores, share: float) -> Ids:
    """Ids of scores whose softmax is at least `share` of the largest's, ascending. scores: relative to the largest."""
    return np.flatnonzero(scores >= math.log(share))
