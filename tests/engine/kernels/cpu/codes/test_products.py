"""Products with packed codes, and folding of steps and minima, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vcbench.engine.codes.packing import pack
from vcbench.engine.kernels.cpu.codes.folding import (
    fill_line,
    folded_line,
    line_sum,
    raise_line,
    scaled_line,
    unfolded_line,
)
from vcbench.engine.kernels.cpu.codes.products import FLOAT8, SIGNED, TABLE, TABLE8, bits_of, products_of

Array = NDArray[Any]
FORMS = [1, 2, 3, 4, SIGNED, FLOAT8, TABLE8]
WIDTHS = [64, 128, 192, 48, 80]
DEPTH = 5


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def numbers_of(form: int, codes: Array, levels: Array) -> Array:
    """What codes stand for, float32."""
    if form == SIGNED:
        return (codes - 128).astype(np.float32)
    if form == FLOAT8:
        return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
    return levels[codes]


def drawn_codes(form: int, width: int) -> Array:
    """Every code but the two of e4m3 that are no numbers."""
    codes = np.random.default_rng(width).integers(0, 1 << bits_of(form), (DEPTH, width))
    return np.where(codes & 0x7F == 0x7F, 1, codes) if form == FLOAT8 else codes


def product(form: int, a: Array, codes: Array, levels: Array, group: int, tiles: list[int]) -> Array:
    """[rows, width] of a: [groups, rows, DEPTH], the rows taken `tiles` at a time."""
    rows = a.shape[1]
    width = codes.shape[1]
    packed = pack(torch.from_numpy(codes.astype(np.int32)), bits_of(form)).numpy()
    out, first = np.zeros((rows, width + 16), np.float32), 0
    for count in tiles:
        products_of(form, width)(
            count, a.ctypes.data + 4 * first * DEPTH, DEPTH, rows * DEPTH, group, packed.ctypes.data,
            packed.shape[1], levels.ctypes.data, out.ctypes.data + 4 * first * (width + 16), width + 16, DEPTH, width,
        )  # fmt: skip
        first += count
    return out[:, :width]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("form", FORMS)
def test_codes_are_read_in_every_place_and_tiles_make_no_difference(form: int, width: int) -> None:
    if width * bits_of(3 if form == 3 else form) % 64:
        pytest.skip("such lines have no whole bytes")
    levels = draw(max(TABLE, 1 << bits_of(form)))
    if form <= 4:
        levels = np.tile(levels[: 1 << form], TABLE >> form)
    codes, group = drawn_codes(form, width), 16 if width == 48 else 32 if width % 32 == 0 else width
    a = draw(-(-width // group), 7, DEPTH)
    each = np.repeat(a, group, axis=0)[:width].astype(np.float64)
    expected = np.einsum("xrk,kx->rx", each, numbers_of(form, codes, levels).astype(np.float64))
    together = product(form, a, codes, levels, group, [7])

    np.testing.assert_allclose(together, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(product(form, a, codes, levels, group, [1, 2, 3, 1]), together)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [16, 64, 20])
def test_steps_scale_and_minima_add_up(stride: int, count: int) -> None:
    x, out = draw(count), np.empty(count, np.float32)
    steps, minima = (draw(stride * count + i).astype(np.float16)[: stride * count] for i in (0, 1))
    scaled_line(stride, x.ctypes.data, steps.ctypes.data, count, out.ctypes.data)
    expected = x * steps[::stride].astype(np.float32)

    np.testing.assert_array_equal(out, expected)
    out[:] = 0
    offset = folded_line(
        stride, x.ctypes.data, steps.ctypes.data, minima.ctypes.data, np.float32(8), count, out.ctypes.data
    )
    np.testing.assert_array_equal(out, expected)
    middles = minima[::stride].astype(np.float64) + 8 * steps[::stride].astype(np.float64)
    assert offset == pytest.approx(float(x.astype(np.float64) @ middles), rel=1e-4, abs=1e-4)


def test_scores_get_their_token_s_step_and_minimum() -> None:
    x, steps, minima = draw(64), draw(65).astype(np.float16)[:64], draw(66).astype(np.float16)[:64]
    expected = x * steps.astype(np.float64) + 2.5 * (minima.astype(np.float64) + 8 * steps.astype(np.float64))
    unfolded_line(x.ctypes.data, steps.ctypes.data, minima.ctypes.data, np.float32(8), np.float32(2.5), 64)

    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [3, 16, 67])
def test_a_line_adds_up(count: int) -> None:
    x = draw(count)

    assert line_sum(x.ctypes.data, count) == pytest.approx(float(x.astype(np.float64).sum()), abs=1e-5)


def test_lines_are_filled_and_raised_no_further_than_they_go() -> None:
    x, before = draw(80), draw(80)
    raise_line(x.ctypes.data, np.float32(0.5), 64)

    np.testing.assert_array_equal(x, np.concatenate([before[:64] + np.float32(0.5), before[64:]]))
    fill_line(x.ctypes.data, np.float32(-2), 32)
    np.testing.assert_array_equal(x[:32], np.full(32, -2, np.float32))
    np.testing.assert_array_equal(x[32:64], before[32:64] + np.float32(0.5))
