"""KL of all measured steps of a cell and what goes with it, from its divergence lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcbench.metrics.divergence import percentiles
from vcbench.metrics.interval import Estimate, mean, ratio
from vcbench.records.schema import TOP_TOKENS, DivergenceLine

POINTS = (50.0, 90.0, 99.0, 99.9, 100.0)
SAME = "same logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """KL of all measured steps of a cell in nats, and what goes with it; None where it was not recorded.

    basis: outputs by how they were measured. percentiles: of all known steps, at `POINTS`. sequence: mean over outputs
    of the sum over their steps. delta_p_rms, delta_p_mean: of q - p of full KV's token, as probabilities.
    ppl_ratio: the method's perplexity on full KV's output over full KV's own.
    """

    outputs: int
    steps: int
    unknown: int
    basis: Mapping[str, int]
    mean: Estimate | None
    percentiles: Sequence[float | None]
    sequence: Estimate | None
    top1_agreement: Estimate | None
    top5_overlap: Estimate | None
    delta_p_rms: Estimate | None
    delta_p_mean: Estimate | None
    ppl_ratio: Estimate | None


def distribution(lines: Sequence[DivergenceLine]) -> Distribution | None:
    """What the lines say together; None without lines."""
    if not lines:
        return None
    known = [[value for value in line.kl if value is not None] for line in lines]
    flat = [value for values in known for value in values]
    changes = [found for line in lines if (found := _changes(line)) is not None and len(found)]
    gaps = [found for line in lines if (found := _log_ratios(line)) is not None and len(found)]
    whole = [sum(values) for values, line in zip(known, lines, strict=True) if len(values) == len(line.kl) > 0]
    overlaps = [line for line in lines if len(line.top5_overlap) == len(line.kl) > 0]
    return Distribution(
        outputs=len(lines),
        steps=sum(len(line.kl) for line in lines),
        unknown=sum(len(line.kl) for line in lines) - len(flat),
        basis=dict(Counter(line.basis for line in lines)),
        mean=ratio([sum(values) for values in known], [float(len(values)) for values in known]),
        percentiles=percentiles(flat, POINTS),
        sequence=mean(whole),
        top1_agreement=ratio([sum(line.top1_agree) for line in lines], [len(line.top1_agree) for line in lines]),
        top5_overlap=ratio(
            [sum(line.top5_overlap) for line in overlaps], [TOP_TOKENS * len(line.kl) for line in overlaps]
        ),
        delta_p_rms=_map(math.sqrt, ratio([float((x**2).sum()) for x in changes], [len(x) for x in changes])),
        delta_p_mean=ratio([float(x.sum()) for x in changes], [len(x) for x in changes]),
        ppl_ratio=_map(math.exp, ratio([float(x.sum()) for x in gaps], [len(x) for x in gaps])),
    )


def _changes(line: DivergenceLine) -> NDArray[np.float64] | None:
    """q - p of full KV's token at each known step; None for records that do not hold it."""
    pair = _logprobs(line)
    return None if pair is None else np.exp(pair[1]) - np.exp(pair[0])


def _log_ratios(line: DivergenceLine) -> NDArray[np.float64] | None:
    pair = _logprobs(line)
    return None if pair is None else pair[0] - pair[1]


def _logprobs(line: DivergenceLine) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """log p and log q at the steps where both are known; of equal logits, as many zeros as there are steps."""
    if line.basis == SAME:
        return np.zeros(len(line.kl)), np.zeros(len(line.kl))
    if len(line.logprob_full) != len(line.kl):
        return None
    pairs = zip(line.logprob_full, line.logprob_method, strict=True)
    known = [(p, q) for p, q in pairs if p is not None and q is not None]
    return np.asarray([p for p, _ in known]), np.asarray([q for _, q in known])


def _map(function: Callable[[float], float], estimate: Estimate | None) -> Estimate | None:
    """A monotone function of an estimate and of its interval."""
    if estimate is None:
        return None
    low, high = (None if bound is None else function(bound) for bound in (estimate.low, estimate.high))
    return Estimate(value=function(estimate.value), low=low, high=high, n=estimate.n)
