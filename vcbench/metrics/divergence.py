"""KL(full || method) per step, teacher-forced along full KV's output, and what is derived from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROWS = 16
"""Steps handled at once: bounds the float64 working set to a few rows of the vocabulary."""

Logits = NDArray[np.floating]


def kl_per_step(reference: Logits, other: Logits) -> NDArray[np.float64]:
    """KL(softmax(reference) || softmax(other)) of each row in nats, [T]; exactly 0 for equal rows, never negative.

    NaN where a row holds NaN or +inf, or where `other` rules out a token that `reference` allows. -inf in both is a
    masked token and counts for nothing.

    Args:
        reference, other: [T, V], float32 or wider (bfloat16 logits must be widened by the caller, not rounded).
    """
    _check(reference, other)
    result = np.empty(reference.shape[0], dtype=np.float64)
    for start in range(0, len(result), ROWS):
        rows = slice(start, start + ROWS)
        result[rows] = _kl(reference[rows], other[rows])
    return result


def top1_agreement(reference: Logits, other: Logits) -> NDArray[np.bool_]:
    """Whether both rows have the same arg-max (the lowest id among equals), [T]; False where a row holds NaN."""
    _check(reference, other)
    finite = ~(np.isnan(reference).any(axis=-1) | np.isnan(other).any(axis=-1))
    agree: NDArray[np.bool_] = finite & (np.argmax(reference, axis=-1) == np.argmax(other, axis=-1))
    return agree


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


def _check(reference: Logits, other: Logits) -> None:
    if reference.ndim != 2 or reference.shape != other.shape or reference.shape[1] == 0:
        raise ValueError(f"logits must be two [T, V] arrays of one shape, got {reference.shape} and {other.shape}")


def _kl(reference: Logits, other: Logits) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        log_p, log_q = _log_softmax(reference), _log_softmax(other)
        p = np.exp(log_p)
        terms = np.where(p > 0, p * (log_p - log_q), 0.0)
        total: NDArray[np.float64] = terms.sum(axis=-1)
    unknown = np.isnan(log_p).any(axis=-1) | np.isnan(log_q).any(axis=-1) | ~np.isfinite(total)
    # Rounding can leave about -1e-16 where the two are almost equal.
    return np.where(unknown, np.nan, np.maximum(total, 0.0))


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    """In float64, NaN throughout a row whose maximum is not finite."""
    wide = np.asarray(logits, dtype=np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
