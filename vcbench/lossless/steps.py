"""Distances between logits in steps of the precision that computed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcbench.errors import UsageError

STORED_BITS = {"float32": 23, "float16": 10, "bfloat16": 7, "float64": 52}
"""Bits of the fraction: a step at exponent e is 2 ** (e - bits), 0.125 for bfloat16 logits in [16, 32)."""
TOP = 5


def step_size(dtype: str, value: float) -> float:
    """The distance between neighbouring numbers of a precision at a value's exponent."""
    bits = STORED_BITS.get(dtype)
    if bits is None:
        raise UsageError(f"dtype {dtype!r} has no known step; known: {', '.join(STORED_BITS)}")
    return float(2.0 ** (np.floor(np.log2(abs(value))) - bits)) if value else float(2.0**-126)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the reference says at one output token: its leader, and how far below it `token` lies.

    shortfall: leader's logit less the token's; `steps` the same in steps at the leader's exponent. `top`: ids and
    logits of the highest, in order; `tied`: those of them that equal the leader in that precision.
    """

    token: int
    leader: int
    shortfall: float
    steps: float
    top: tuple[tuple[int, float], ...]
    tied: frozenset[int]


def inspect_rows(logits: NDArray[np.float32], tokens: Sequence[int], dtype: str) -> list[Row]:
    """One row per token. logits: [len(tokens), V]; row i chose, or might have chosen, tokens[i].

    Where logits are not finite nothing leads, and every token falls short without limit.
    """
    rows = []
    for values, token in zip(logits, tokens, strict=True):
        if not np.isfinite(values).all():
            rows.append(Row(token=token, leader=-1, shortfall=np.inf, steps=np.inf, top=(), tied=frozenset()))
            continue
        top = top_of(values)
        leader, highest = top[0]
        shortfall = highest - float(values[token])
        size = step_size(dtype, highest)
        rows.append(
            Row(
                token=token,
                leader=leader,
                shortfall=shortfall,
                steps=shortfall / size,
                top=top,
                tied=frozenset(index for index, value in top if rounded(value, dtype) == rounded(highest, dtype)),
            )
        )
    return rows


def drawn_row(logits: NDArray[np.float32], margins: NDArray[np.float64], token: int, leader: int, dtype: str) -> Row:
    """The row of a token that was not chosen by logits alone: `leader` is what the rule takes.

    margins: [V], what each logit lacks for its token to be taken; they stand in for the distance to the leader.
    """
    if not np.isfinite(logits).all():
        return Row(token=token, leader=-1, shortfall=np.inf, steps=np.inf, top=(), tied=frozenset())
    nearest = [leader, *(index for index, _ in top_of(-margins.astype(np.float32)) if index != leader)][:TOP]
    size, shortfall = step_size(dtype, float(logits[leader])), float(margins[token]) if token != leader else 0.0
    return Row(
        token=token,
        leader=leader,
        shortfall=shortfall,
        steps=shortfall / size,
        top=tuple((index, float(logits[index])) for index in nearest),
        tied=frozenset(index for index in nearest if index == leader or margins[index] == 0),
    )


def top_of(values: NDArray[np.float32], count: int = TOP) -> tuple[tuple[int, float], ...]:
    """Ids and logits of the highest, the lower id first among equals."""
    count = min(count, len(values))
    candidates = np.argpartition(-values, count - 1)[:count]
    # Equal values at the edge: the lower ids among all that are as high as the lowest chosen one.
    edge = values[candidates].min()
    above = np.flatnonzero(values >= edge)
    order = above[np.lexsort((above, -values[above]))][:count]
    return tuple((int(index), float(values[index])) for index in order)


def rounded(value: float, dtype: str) -> float:
    """The value in that precision, rounded to nearest."""
    if not np.isfinite(value) or dtype == "float64" or not value:
        return float(value)
    size = step_size(dtype, value)
    return float(np.round(value / size) * size)
