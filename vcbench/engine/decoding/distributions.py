"""How far a method's next-token distribution is from full KV's at each step, over the whole vocabulary.

p is full KV's distribution and q the method's, both after the same prefix of full KV's own output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcbench.records.schema import TOP_TOKENS

ROWS = 16
"""Steps handled at once: bounds the float64 working set to a few rows of the vocabulary."""
BLOCK = 256

Logits = NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What is measured at each of T steps; arrays of [T].

    kl: KL(p || q) in nats, NaN where a row holds NaN or +inf or q rules out what p allows; exactly 0 for equal rows.
    top1_agree: whether both have the same arg-max. top5_overlap: how many tokens are among the five best of both.
    logprob_full, logprob_method: log p and log q of the token that full KV's output has there, in nats.
    """

    kl: NDArray[np.float64]
    top1_agree: NDArray[np.bool_]
    top5_overlap: NDArray[np.int64]
    logprob_full: NDArray[np.float64]
    logprob_method: NDArray[np.float64]


def compare_steps(reference: Logits, other: Logits, tokens: Sequence[int]) -> Steps:
    """Both distributions of each step. -inf in both is a masked token and counts for nothing.

    Args:
        reference, other: [T, V], float32 or wider (bfloat16 logits must be widened by the caller, not rounded).
        tokens: The reference's next token of each step, [T].
    """
    _check(reference, other)
    if len(tokens) != reference.shape[0]:
        raise ValueError(f"{len(tokens)} tokens for {reference.shape[0]} steps")
    parts = [
        _compare(reference[start : start + ROWS], other[start : start + ROWS], tokens[start : start + ROWS])
        for start in range(0, max(len(tokens), 1), ROWS)
    ]
    return Steps(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Steps.__slots__})


def kl_per_step(reference: Logits, other: Logits) -> NDArray[np.float64]:
    """KL(softmax(reference) || softmax(other)) of each row in nats, [T], as in `Steps.kl`."""
    return compare_steps(reference, other, [0] * reference.shape[0]).kl


def _check(reference: Logits, other: Logits) -> None:
    if reference.ndim != 2 or reference.shape != other.shape or reference.shape[1] == 0:
        raise ValueError(f"logits must be two [T, V] arrays of one shape, got {reference.shape} and {other.shape}")


def _compare(reference: Logits, other: Logits, tokens: Sequence[int]) -> Steps:
    rows = np.arange(len(tokens))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        a, b = _shifted(reference), _shifted(other)
        weights = np.exp(a)
        sums = weights.sum(axis=-1), np.exp(b).sum(axis=-1)
        log_sums = np.log(sums[0]), np.log(sums[1])
        gaps = a - b
        if not np.isfinite(gaps).all():
            gaps = np.where(weights > 0, gaps, 0.0)
        total = np.einsum("tv,tv->t", weights, gaps) / sums[0] - (log_sums[0] - log_sums[1])
        finite = np.isfinite(log_sums[0]) & np.isfinite(log_sums[1])
        known_p, known_q = a[rows, tokens] - log_sums[0], b[rows, tokens] - log_sums[1]
    return Steps(
        # Rounding can leave about -1e-16 where the two are almost equal.
        kl=np.where(finite & np.isfinite(total), np.maximum(total, 0.0), np.nan),
        top1_agree=finite & (np.argmax(reference, axis=-1) == np.argmax(other, axis=-1)),
        top5_overlap=np.where(finite, _overlap(reference, other), 0),
        logprob_full=np.where(np.isfinite(known_p), known_p, np.nan),
        logprob_method=np.where(np.isfinite(known_q), known_q, np.nan),
    )


def _shifted(logits: Logits) -> NDArray[np.float64]:
    """In float64, less the row's maximum; NaN throughout a row whose maximum is not finite."""
    wide = np.asarray(logits, dtype=np.float64)
    shifted: NDArray[np.float64] = wide - wide.max(axis=-1, keepdims=True)
    return shifted


def _overlap(reference: Logits, other: Logits) -> NDArray[np.int64]:
    """Size of the intersection of both rows' `TOP_TOKENS` best tokens, [T]."""
    pairs = zip(reference, other, strict=True)
    return np.asarray([len(np.intersect1d(_best(p), _best(q))) for p, q in pairs], dtype=np.int64)


def _best(row: NDArray[np.floating]) -> NDArray[np.int64]:
    """The `TOP_TOKENS` best tokens, lower ids first among equals.

    The fifth largest of the maxima of blocks is no more than the fifth largest of all, so few tokens reach it.
    """
    blocks = row[: len(row) // BLOCK * BLOCK].reshape(-1, BLOCK).max(axis=1)
    floor = np.partition(blocks, -TOP_TOKENS)[-TOP_TOKENS] if len(blocks) >= TOP_TOKENS else -np.inf
    found = np.flatnonzero(row >= floor)
    return found[np.lexsort((found, -row[found]))[:TOP_TOKENS]]
