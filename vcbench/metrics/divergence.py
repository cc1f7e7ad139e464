"""Figures over recorded divergences, and a bound on KL from the few log-probabilities that other engines record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

RESOLUTION = 1e-6
"""Least probability that is granted to all tokens outside a top-k list: reported log-probabilities are rounded."""


def kl_topk(reference: Mapping[int, float], other: Mapping[int, float]) -> float:
    """A lower bound on KL(p || q) in nats from the log-probabilities of a few tokens, by token id.

    Tokens that both lists name keep their own terms; all others are taken together as one event on each side, and
    merging events never raises KL (log-sum inequality). Equal to KL where both lists name the whole vocabulary.
    """
    common = reference.keys() & other.keys()
    p = {token: math.exp(reference[token]) for token in common}
    rest_p = max(0.0, 1.0 - math.fsum(p.values()))
    rest_q = max(RESOLUTION, 1.0 - math.fsum(math.exp(other[token]) for token in common))
    named = math.fsum(p[token] * (reference[token] - other[token]) for token in common)
    return max(0.0, named + (rest_p * math.log(rest_p / rest_q) if rest_p > 0 else 0.0))


def cumulative(kl: Sequence[float | None]) -> list[float | None]:
    """Running sum in nats: KL between the distributions of whole outputs; None from the first unknown step on."""
    total: float | None = 0.0
    sums: list[float | None] = []
    for value in kl:
        total = None if total is None or value is None else total + value
        sums.append(total)
    return sums


def percentiles(values: Sequence[float | None], points: Sequence[float]) -> list[float | None]:
    """Linearly interpolated percentiles of the known values; all None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return [None] * len(points)
    return [float(value) for value in np.percentile(np.asarray(known, dtype=np.float64), points)]
