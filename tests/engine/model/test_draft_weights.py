"""Narrow weights: what a layer computes, what it weighs, and that the model around it is the exact one."""

from __future__ import annotations

import pytest
import torch

from vcbench.engine.model.draft_weights import DraftWeights, NarrowLinear
from vcbench.engine.model.linear import BlockedLinear


def layer(outputs: int, inputs: int, *, bias: bool = False, seed: int = 0) -> BlockedLinear:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((outputs, inputs), generator=generator)
    return BlockedLinear(weight, torch.randn(outputs, generator=generator) if bias else None)


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (130, 100), (1, 1), (63, 257), (576, 1536)])
@pytest.mark.parametrize("bias", [False, True])
def test_product_is_that_of_the_rounded_weights(kind: DraftWeights, outputs: int, inputs: int, bias: bool) -> None:
    exact = layer(outputs, inputs, bias=bias)
    narrow = NarrowLinear(exact, kind)
    x = torch.randn((7, inputs), generator=torch.Generator().manual_seed(1))

    added = torch.from_numpy(exact.bias[:outputs]).double() if bias else 0.0
    expected = x.double() @ narrow.weight().double().T + added

    torch.testing.assert_close(narrow(x).double(), expected, rtol=1e-5, atol=1e-5 * inputs**0.5)


def test_int8_misses_a_weight_by_half_a_step_at_most() -> None:
    exact = layer(130, 96)
    narrow = NarrowLinear(exact, "int8")
    step = exact.weight().abs().amax(dim=1, keepdim=True) / 127

    assert bool(((narrow.weight() - exact.weight()).abs() <= 0.5001 * step).all())
    assert not torch.equal(narrow.weight(), exact.weight())


def test_bfloat16_rounds_to_the_nearest() -> None:
    exact = layer(65, 33)

    assert torch.equal(NarrowLinear(exact, "bfloat16").weight(), exact.weight().bfloat16().float())


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_a_row_does_not_depend_on_the_others(kind: DraftWeights) -> None:
    narrow = NarrowLinear(layer(200, 300), kind)
    x = torch.randn((13, 300), generator=torch.Generator().manual_seed(2))
    together = narrow(x)

    for rows in (1, 2, 3, 5, 8):
        for start in range(0, 13 - rows + 1):
            assert torch.equal(narrow(x[start : start + rows]), together[start : start + rows])


def test_an_output_without_weights_is_its_bias() -> None:
    narrow = NarrowLinear(BlockedLinear(torch.zeros((2, 8)), torch.tensor([3.0, -1.0])), "int8")

    assert torch.equal(narrow(torch.ones((1, 8))), torch.tensor([[3.0, -1.0]]))


def test_bytes_are_those_of_codes_and_scales() -> None:
    exact = layer(128, 96)

    assert NarrowLinear(exact, "int8").nbytes() == 128 * 96 + 4 * 128
    assert NarrowLinear(exact, "bfloat16").nbytes() == 2 * 128 * 96 + 4 * 128
