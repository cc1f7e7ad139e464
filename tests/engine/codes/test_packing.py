"""Uniform quantisation and packed codes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.reference import draw
from vcbench.engine.codes.packing import dequantise, pack, quantise, unpack

MSE = {
    (32, 2): 0.1543, (32, 3): 0.02811, (32, 4): 0.00611, (32, 8): 2.1e-5,
    (64, 2): 0.2025, (64, 3): 0.0369, (64, 4): 0.00803, (64, 8): 2.8e-5,
    (128, 2): 0.2509, (128, 3): 0.0458, (128, 4): 0.00995, (128, 8): 3.4e-5,
}  # fmt: skip
"""Mean squared error of asymmetric groups of a standard normal, by group size and bits."""
SYMMETRIC_MSE = {(128, 4): 0.01375, (128, 8): 4.18e-5, (32, 4): 0.00943, (32, 8): 2.86e-5}


def round_trip(x: Tensor, bits: int, *, symmetric: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, steps, reconstruction)."""
    codes, steps, minima = quantise(x, bits, symmetric=symmetric)
    return codes, steps, dequantise(codes, steps, minima, bits, symmetric=symmetric)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_every_code_survives_in_every_place(bits: int) -> None:
    """A-ACC-4."""
    values = torch.arange(1 << bits, dtype=torch.int32)
    places = 8 * 3
    codes = torch.stack([values.roll(shift).repeat(places)[:places] for shift in range(len(values))])
    packed = pack(codes, bits)

    assert packed.dtype == torch.uint8
    assert packed.shape == (len(values), places * bits // 8)
    assert torch.equal(unpack(packed, bits), codes)


@given(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 9), st.integers(0, 2**31))
def test_unpacking_undoes_packing(bits: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(
        0, 1 << bits, (2, 3, size * (8 if bits == 3 else 8 // bits)), generator=generator, dtype=torch.int32
    )

    assert torch.equal(unpack(pack(codes, bits), bits), codes)


def test_codes_lie_interleaved() -> None:
    """Of 8 codes in 2 bytes, code i is in byte i mod 2: what the kernels' lanes rely on."""
    codes = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0], dtype=torch.int32)

    assert pack(codes, 2).tolist() == [0 | 2 << 2 | 3 << 4 | 1 << 6, 1 | 3 << 2 | 2 << 4 | 0 << 6]


@pytest.mark.parametrize(("group", "bits"), MSE)
def test_error_on_a_gaussian(group: int, bits: int) -> None:
    x = draw(400_000 // group, group)
    _, _, back = round_trip(x, bits)

    # The table's 8-bit entries have two digits.
    assert (back - x).pow(2).mean().item() == pytest.approx(MSE[group, bits], rel=0.01 if bits < 8 else 0.03)


@pytest.mark.parametrize(("group", "bits"), SYMMETRIC_MSE)
def test_error_of_symmetric_codes_on_a_gaussian(group: int, bits: int) -> None:
    x = draw(400_000 // group, group)
    _, _, back = round_trip(x, bits, symmetric=True)

    assert (back - x).pow(2).mean().item() == pytest.approx(SYMMETRIC_MSE[group, bits], rel=0.01)


def test_a_minimum_keeps_one_signed_data_as_good_as_centred_data() -> None:
    """An integer zero clamped to the code's range would give 4.91."""
    x = 6 + draw(10_000, 32)
    _, _, back = round_trip(x, 2)

    assert (back - x).pow(2).mean().item() == pytest.approx(MSE[32, 2], rel=0.015)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 4, 8])
@given(offset=st.floats(-50, 50), size=st.floats(1e-3, 100), seed=st.integers(0, 2**31))
def test_the_error_is_at_most_half_a_step(symmetric: bool, bits: int, offset: float, size: float, seed: int) -> None:
    """A-Q-1, but for the float16 rounding of the step, taken `levels` times, and of the minimum."""
    x = offset + size * torch.randn((4, 32), generator=torch.Generator().manual_seed(seed))
    _, steps, back = round_trip(x, bits, symmetric=symmetric)
    half_ulp = torch.maximum(3 * x.abs().amax(-1, keepdim=True) * 2.0**-11, torch.tensor((1 << bits) * 2.0**-25))
    bound = steps.float()[:, None] * 0.5001 + half_ulp

    assert ((back - x).abs() <= bound).all()


def test_a_grid_is_exact() -> None:
    """A-Q-1."""
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0], [-1.0, 0.0, 1.0, 5.0]])
    codes, _, back = round_trip(x, 2)

    assert codes.tolist() == [[0, 1, 2, 3], [0, 0, 1, 3]]
    assert back.tolist() == [[0, 1, 2, 3], [-1, -1, 1, 5]]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 1e-9, 1000.0])
def test_a_constant_group_gives_its_value(value: float, symmetric: bool) -> None:
    codes, _, back = round_trip(torch.full((2, 32), value), 4, symmetric=symmetric)

    torch.testing.assert_close(back, torch.full((2, 32), value), rtol=2.0**-11, atol=1e-8)
    assert symmetric or codes.count_nonzero() == 0


def test_symmetric_codes_have_an_exact_zero() -> None:
    x = torch.tensor([[0.0, -4.0, 3.0, 0.1]])
    codes, _, back = round_trip(x, 4, symmetric=True)

    assert codes[0, 0] == 8
    assert back[0, 0] == 0
    assert codes.min() >= 1


@pytest.mark.parametrize("symmetric", [True, False])
def test_values_beyond_float16_stay_finite(symmetric: bool) -> None:
    _, steps, back = round_trip(torch.tensor([[1e6, -1e6, 3e7, 0.0]]), 2, symmetric=symmetric)

    assert steps.isfinite().all()
    assert back.isfinite().all()
