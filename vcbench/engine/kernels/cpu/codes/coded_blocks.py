"""One block of 64 tokens in packed codes: scores of its keys and sums of its values.

Where a group is a token, its step scales the score (keys) or the weight (values); where it is some tokens of a channel,
the steps scale the query. No entry is ever decoded to memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba

from vcbench.engine.kernels.cpu.codes.folding import fill_line, folded_line, raise_line, scaled_line, unfolded_line
from vcbench.engine.kernels.cpu.codes.products import bits_of
from vcbench.engine.kernels.cpu.exact.attention import BLOCK, SCORE_STRIDE
from vcbench.engine.kernels.cpu.separate import call_at
from vcbench.engine.kernels.cpu.simd import Float, address, fma_rows


class KeyCoding(NamedTuple):
    """form: see `products`; products: address of its products, with lines of a block's 64 tokens.

    by_channel: groups are `group` tokens of a channel, a multiple of 16, else a token's head. scaled, centred: whether
    groups have steps, and minima. unit: what a level of 1 stands for. levels: at least 16.
    """

    form: int
    products: int
    by_channel: bool
    group: int
    scaled: bool
    centred: bool
    unit: Any
    levels: Any


class ValueCoding(NamedTuple):
    """As `KeyCoding`; products have lines of a token's channels.

    Groups are `group` channels of a token, a multiple of 16 or all of them, `groups` a token.
    """

    form: int
    products: int
    group: int
    groups: int
    scaled: bool
    centred: bool
    unit: Any
    levels: Any


@numba.njit(nogil=True)
def middle_of(form: int) -> Any:
    """The code that stands for level 0 where levels count steps."""
    return Float(1 << (bits_of(form) - 1))


@numba.njit(nogil=True)
def scores_by_channel(
    coding: Any, query: Any, codes: int, steps: int, minima: int, block: int, ready: int, folded: Any, scores: Any
) -> None:
    """scores[r, j] = query[r] . key j of the first `ready` tokens of a block. folded: scratch [groups * rows, D]."""
    rows, depth = query.shape
    inside = min(coding.group, BLOCK)
    query_at, folded_at, scores_at = address(query), address(folded), address(scores)
    groups = (ready + inside - 1) // inside
    for g in range(groups):
        row = (block * BLOCK + g * inside) // coding.group
        at = 2 * row * depth
        for r in range(rows):
            source, target = query_at + 4 * r * depth, folded_at + 4 * (g * rows + r) * depth
            offset = Float(0)
            if coding.centred:
                offset = folded_line(1, source, steps + at, minima + at, middle_of(coding.form), depth, target)
            else:
                scaled_line(1, source, steps + at, depth, target)
            fill_line(scores_at + 4 * (r * SCORE_STRIDE + g * inside), offset, inside)
    line = BLOCK * bits_of(coding.form) // 8
    arguments = (
        rows, address(folded), depth, rows * depth, inside, codes + block * depth * line, line,
        address(coding.levels), scores_at, SCORE_STRIDE, depth, BLOCK,
    )  # fmt: skip
    call_at(coding.products, arguments)


@numba.njit(nogil=True)
def scores_by_token(
    coding: Any, query: Any, totals: Any, codes: int, steps: int, minima: int, block: int, scores: Any
) -> None:
    """As `scores_by_channel`. query: [rows, D] in units; totals: [rows], the sum of each."""
    rows, depth = query.shape
    for r in range(rows):
        fill_line(address(scores) + 4 * r * SCORE_STRIDE, Float(0), BLOCK)
    line = BLOCK * bits_of(coding.form) // 8
    arguments = (
        rows, address(query), depth, 0, BLOCK, codes + block * depth * line, line,
        address(coding.levels), address(scores), SCORE_STRIDE, depth, BLOCK,
    )  # fmt: skip
    call_at(coding.products, arguments)
    at = 2 * block * BLOCK
    for r in range(rows):
        target = address(scores) + 4 * r * SCORE_STRIDE
        if coding.centred:
            unfolded_line(target, steps + at, minima + at, middle_of(coding.form), totals[r], BLOCK)
        elif coding.scaled:
            scaled_line(1, target, steps + at, BLOCK, target)


@numba.njit(nogil=True)
def add_values(coding: Any, weights: Any, rows: int, place: Any, block: int, ready: int, folded: Any, acc: Any) -> None:
    """acc[r] += sum of weights[r, j] * value j over the first `ready` tokens. folded: scratch [groups * rows, 64]."""
    (codes, steps, minima), width = place, acc.shape[1]
    line = width * bits_of(coding.form) // 8
    at = codes + block * BLOCK * line
    levels, group = address(coding.levels), coding.group if coding.groups > 1 else width
    weights_at, folded_at, acc_at = address(weights), address(folded), address(acc)
    if not coding.scaled:
        for r in range(rows):
            for j in range(ready):
                folded[r, j] = weights[r, j] * coding.unit
        call_at(coding.products, (rows, folded_at, BLOCK, 0, group, at, line, levels, acc_at, width, ready, width))
        return
    stride, first = coding.groups, 2 * block * BLOCK * coding.groups
    for g in range(coding.groups):
        for r in range(rows):
            source, target = weights_at + 4 * r * weights.shape[1], folded_at + 4 * (g * rows + r) * BLOCK
            if not coding.centred:
                scaled_line(stride, source, steps + first + 2 * g, ready, target)
                continue
            offset = folded_line(
                stride, source, steps + first + 2 * g, minima + first + 2 * g, middle_of(coding.form), ready, target
            )
            raise_line(acc_at + 4 * (r * width + g * group), offset, group)
    call_at(
        coding.products, (rows, folded_at, BLOCK, rows * BLOCK, group, at, line, levels, acc_at, width, ready, width)
    )


@numba.njit(nogil=True)
def add_exact_values(
    weights: Any, rows: int, group: int, values: int, skipped: int, visible_first: int, acc: Any
) -> None:
    """acc[r] += the weighted values of a page from entry `skipped` on; row r sees visible_first + r // group of it."""
    at, stride, target = address(weights) + 4 * skipped, 4 * weights.shape[1], address(acc)
    width = acc.shape[1]
    start = values + 4 * width * skipped
    if visible_first >= BLOCK:
        fma_rows(rows, at, weights.shape[1], start, target, width, BLOCK - skipped, width)
        return
    for r in range(0, rows, group):
        visible = min(BLOCK, visible_first + r // group) - skipped
        if visible > 0:
            fma_rows(group, at + r * stride, weights.shape[1], start, target + 4 * r * width, width, visible, width)


@numba.njit(nogil=True)
def add_exact_scores(query: Any, keys: int, ready: int, scratch: Any, scores: Any) -> None:
    """scores[r, j] = query[r] . key j of a page, from entry `ready` on. scratch: as scores."""
    rows, depth = query.shape
    for r in range(rows):
        for j in range(BLOCK):
            scratch[r, j] = Float(0)
    fma_rows(rows, address(query), depth, keys, address(scratch), SCORE_STRIDE, depth, BLOCK)
    for r in range(rows):
        for j in range(ready, BLOCK):
            scores[r, j] = scratch[r, j]
