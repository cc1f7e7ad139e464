"""The building blocks of the CPU kernels against numpy."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from vcbench.engine.kernels.cpu.simd import MAX_TILE_ROWS, STRIP, exp, fma, fma_rows, half_as_float, round_even

Array = NDArray[np.float32]


@numba.njit
def each_exp(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = exp(x[i])


@numba.njit
def each_round(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = round_even(x[i])


@numba.njit
def each_half(bits: Any, out: Any) -> None:
    for i in range(bits.shape[0]):
        out[i] = half_as_float(bits[i])


@numba.njit
def one_fma(a: Any, b: Any, c: Any) -> Any:
    return fma(a, b, c)


def exponential(x: Array) -> Array:
    out = np.empty_like(x)
    each_exp(x, out)
    return out


def test_exp_is_within_two_ulp_over_its_range() -> None:
    x = np.linspace(-87, 88, 400_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))

    assert np.abs(exponential(x) / exact - 1).max() < 2e-7


def test_exp_at_its_edges() -> None:
    x = np.array([0, -0.0, -87.0, -87.00001, -1000, -3e38, -np.inf, np.nan], np.float32)
    y = exponential(x)

    assert y[0] == y[1] == 1
    assert y[2] > 0
    assert y[3:7].tolist() == [0, 0, 0, 0]
    assert np.isnan(y[7])


def test_exp_never_rises_above_one_for_what_a_softmax_gives_it() -> None:
    x = -np.geomspace(1e-10, 87, 100_000, dtype=np.float32)

    assert exponential(x).max() <= 1


def test_rounding_goes_to_even() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 7.7], np.float32)
    out = np.empty_like(x)
    each_round(x, out)

    assert out.tolist() == [-2, -2, 0, 0, 2, 2, 0, 8]


def test_a_fused_product_rounds_once() -> None:
    a = np.float32(1 + 2**-12)

    assert one_fma(a, a, np.float32(-1 - 2**-11)) == np.float32(2**-24)


def test_every_half_becomes_the_same_float() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty(bits.shape, np.float32)
    each_half(bits, out)

    np.testing.assert_array_equal(out, bits.view(np.float16).astype(np.float32))


def product(a: Array, b: Array, c: Array, tiles: list[int]) -> Array:
    """c + a @ b, the rows taken `tiles` at a time; a and c may be wider than the product and stay as they are."""
    out, depth, width = c.copy(), *b.shape
    first = 0
    for rows in tiles:
        fma_rows(
            rows, a.ctypes.data + 4 * first * a.shape[1], a.shape[1], b.ctypes.data,
            out.ctypes.data + 4 * first * out.shape[1], out.shape[1], depth, width,
        )  # fmt: skip
        first += rows
    return out


def operands(rows: int, depth: int, width: int, *, whole: bool) -> tuple[Array, Array, Array]:
    """a: [rows, depth + 3], b: [depth, width], c: [rows, width + 5]; small integers if `whole`."""
    generator = np.random.default_rng(rows * 1000 + depth + width)

    def draw(*shape: int) -> Array:
        drawn = generator.integers(-8, 9, shape) if whole else generator.standard_normal(shape)
        return drawn.astype(np.float32)

    return draw(rows, depth + 3), draw(depth, width), draw(rows, width + 5)


SIZES = [(1, 1, 16), (2, 7, 32), (3, 20, 48), (5, 64, 64), (6, 33, 80), (7, 128, 112), (13, 2, STRIP), (25, 64, 144)]


@pytest.mark.parametrize(("rows", "depth", "width"), SIZES)
def test_products_of_whole_numbers_are_exact(rows: int, depth: int, width: int) -> None:
    a, b, c = operands(rows, depth, width, whole=True)
    expected = c.copy()
    expected[:, :width] += a[:, :depth] @ b

    np.testing.assert_array_equal(product(a, b, c, [rows]), expected)


@pytest.mark.parametrize(("rows", "depth", "width"), SIZES)
def test_products_are_right_and_do_not_depend_on_the_tiling(rows: int, depth: int, width: int) -> None:
    a, b, c = operands(rows, depth, width, whole=False)
    together = product(a, b, c, [rows])
    expected = c.astype(np.float64)
    expected[:, :width] += a[:, :depth].astype(np.float64) @ b

    np.testing.assert_allclose(together, expected, rtol=0, atol=3e-5)
    for tile in range(1, MAX_TILE_ROWS + 2):
        tiles = [tile] * (rows // tile) + ([rows % tile] if rows % tile else [])
        np.testing.assert_array_equal(product(a, b, c, tiles), together)
