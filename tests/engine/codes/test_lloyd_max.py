"""A-TQ-1: levels and errors of Lloyd-Max quantisers."""

from __future__ import annotations

import pytest

from vcbench.engine.codes.lloyd_max import lloyd_max

MSE = {
    (1, None): 0.36338023, (2, None): 0.11748185, (3, None): 0.03454776, (4, None): 0.00950101, (5, None): 0.00250467,
    (6, None): 6.4424e-4, (7, None): 1.6348e-4, (8, None): 4.1185e-5,
    (1, 64): 0.358387, (2, 64): 0.114526, (3, 64): 0.033391, (4, 64): 0.009132, (5, 64): 0.002399,
    (1, 128): 0.360889, (2, 128): 0.116000, (3, 128): 0.033966, (4, 128): 0.009315, (5, 128): 0.002452,
    (1, 256): 0.362136, (2, 256): 0.116740, (3, 256): 0.034256, (4, 256): 0.009408, (5, 256): 0.002478,
}  # fmt: skip
"""Per coordinate times sqrt(dimensions), by bits and dimensions; None is a standard normal."""
LEVELS = {
    (1, None): [0.79788],
    (2, None): [0.45278, 1.51042],
    (3, None): [0.24509, 0.75601, 1.34391, 2.15195],
    (4, None): [0.12840, 0.38805, 0.65676, 0.94234, 1.25623, 1.61805, 2.06902, 2.73259],
    (1, 128): [0.79944],
    (2, 128): [0.45245, 1.50519],
    (3, 128): [0.24442, 0.75333, 1.33660, 2.13147],
    (4, 128): [0.12787, 0.38638, 0.65362, 0.93710, 1.24777, 1.60434, 2.04593, 2.68886],
}
"""The positive half."""


@pytest.mark.parametrize(("bits", "dimensions"), MSE)
def test_errors(bits: int, dimensions: int | None) -> None:
    assert lloyd_max(bits, dimensions).mse == pytest.approx(MSE[bits, dimensions], abs=1e-6)


@pytest.mark.parametrize(("bits", "dimensions"), LEVELS)
def test_levels(bits: int, dimensions: int | None) -> None:
    levels = lloyd_max(bits, dimensions).levels

    assert levels[len(levels) // 2 :] == pytest.approx(LEVELS[bits, dimensions], abs=1e-4)
    assert levels == pytest.approx(-levels[::-1])


@pytest.mark.parametrize("bits", range(1, 9))
def test_errors_stay_below_the_papers_bound(bits: int) -> None:
    assert lloyd_max(bits, 128).mse <= 3**0.5 * 3.14159265 / 2 * 4.0**-bits
