"""FP8: e4m3's codes, its error, and saturation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.compressors import tiny
from vcbench.compressors.fp8 import FP8, FP8Options
from vcbench.engine.codes.coders import FP8Coder

CPU = torch.device("cpu")


def rounded(x: Tensor, scale: float = 1.0) -> Tensor:
    by = FP8Coder(scale, CPU)
    return by.decode(*by.encode(x, "keys"), "keys")


def test_every_code_survives() -> None:
    """A-FP8-1."""
    levels = FP8Coder(1.0, CPU).levels("keys")
    finite = torch.cat([levels[:127], levels[128:255]])

    assert torch.equal(rounded(finite), finite)
    assert len(finite.unique()) == 253


@pytest.mark.parametrize(
    ("value", "stored"),
    [(0.1, 0.1015625), (1 / 3, 0.34375), (1.0625, 1.0), (1.1875, 1.25), (17.0, 16.0), (300.0, 288.0), (464.0, 448.0),
     (2.0**-10, 0.0), (1.5 * 2.0**-9, 2.0**-8)],
)  # fmt: skip
def test_fixtures(value: float, stored: float) -> None:
    """A-FP8-1: ties to even, subnormals, saturation."""
    assert rounded(torch.tensor([value, -value])).tolist() == [stored, -stored]


def test_error_on_a_gaussian() -> None:
    """A-FP8-2, whatever the size of the numbers."""
    for size in (0.125, 1.0, 30.0):
        x = size * torch.randn(400_000, generator=torch.Generator().manual_seed(0))
        error = (rounded(x) - x).square().mean() / x.square().mean()
        assert error.item() == pytest.approx(7.04e-4, rel=0.02)


def test_large_numbers_saturate() -> None:
    """A-FP8-3."""
    assert rounded(torch.tensor([500.0, -1e9, float("inf")])).tolist() == [448.0, -448.0, 448.0]


def test_a_scale_moves_the_range() -> None:
    assert rounded(torch.tensor([900.0, 0.25]), scale=4.0).tolist() == [896.0, 0.25]


def test_a_cache_is_one_byte_an_element_and_a_table() -> None:
    keys = torch.randn(2, 2, 640, 64)
    cache = FP8(FP8Options()).compress(tiny.prefill_of(tiny.full_cache(keys)), seed=0)
    held = cache.nbytes()

    assert held["codes"] == 2 * keys.numel()
    assert (held["steps"], held["minima"], held["tables"]) == (0, 0, 1024)
    assert torch.equal(cache.materialize(1)[0], rounded(keys[1]))
    assert FP8.estimate_bytes(FP8Options(), tiny.ARCHITECTURE, 10, 2) == 10 * 3 * 2 * 2 * 20


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_scale_out_of_range(scale: float) -> None:
    with pytest.raises(ValueError, match=r"^scale is"):
        FP8Options(scale=scale)
