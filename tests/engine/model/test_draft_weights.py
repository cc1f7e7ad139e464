"""Narrow weights: what a layer computes, what it weighs, and that the model around it is the exact one."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from tests.compressors.examples import make
from tests.engine import tiny
from tests.engine.cells import METHODS, check_same, decode, prefilled, request
from tests.engine.decoding.setups import cell
from vcbench.config.sampling import Sampling
from vcbench.config.schema import DraftWeights
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.session import Compress, run_cell
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.model.draft_weights import NarrowLinear, bytes_beside, drafting
from vcbench.engine.model.linear import BlockedLinear
from vcbench.engine.model.mlp import DenseMLP, SparseMLP
from vcbench.engine.model.row_operations import CpuRows
from vcbench.engine.types import Generation
from vcbench.models.architecture import Experts


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


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
def test_the_model_is_narrowed_once_and_shares_all_but_its_linear_layers(kind: DraftWeights) -> None:
    exact = tiny.decoder().with_weights(tiny.decoder().weights)
    narrow = drafting(exact, kind)

    assert drafting(exact, "full") is exact
    assert drafting(exact, kind) is narrow
    assert exact.weights is tiny.decoder().weights
    assert narrow.weights.embedding is exact.weights.embedding
    assert narrow.rope is exact.rope
    assert all(isinstance(layer, NarrowLinear) for layer in narrow.weights.linears())
    assert bytes_beside(exact) == {kind: sum(NarrowLinear(layer, kind).nbytes() for layer in blocked(exact))}


def test_a_mixture_keeps_its_router() -> None:
    experts = [DenseMLP(layer(16, 8), layer(8, 8), CpuRows()) for _ in range(3)]
    mixture = SparseMLP(
        layer(3, 8), experts, Experts(count=3, per_token=2, intermediate_size=8, normalise=True), CpuRows()
    )

    narrow = mixture.mapped(lambda each: NarrowLinear(cast(BlockedLinear, each), "int8"))

    assert narrow.router is mixture.router
    assert all(isinstance(part, NarrowLinear) for expert in narrow.experts for part in expert.linears())


def test_a_model_in_16_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a model in float32 on CPU"):
        drafting(tiny.decoder(tiny.ARCHITECTURE, torch.bfloat16), "int8")


@pytest.mark.parametrize("kind", ["int8", "bfloat16"])
@pytest.mark.parametrize("sampled", [False, True])
def test_drafts_by_narrow_weights_leave_every_logit_as_it_is(kind: DraftWeights, sampled: bool) -> None:
    """Outputs, stops and hashes of full KV, and drafts that are really of another model."""
    sampling = Sampling(temperature=0.8, seed=3) if sampled else Sampling()
    items = [prefilled(request(tiny.token_ids(n, seed=n), str(n), sampling=sampling)) for n in (40, 70)]
    method = make(METHODS["none"])
    full = decode(items)
    narrow = run(items, method, kind)

    for ours, theirs in zip(narrow, full, strict=True):
        check_same(ours, theirs)
    # with nothing compressed, drafts by the model's own weights are all accepted; those of rounded ones need not be
    own = run(items, method, "full")
    assert all(each.accepted == each.drafted for done in own for each in done.rounds)
    exact = tiny.decoder()
    assert not torch.equal(drafting(exact, kind).weights.head.weight(), exact.weights.head.weight())


def run(items: list[Prefilled], method: Compress, kind: DraftWeights) -> list[Generation]:
    ended: dict[str, Generation] = {}
    setup = cell("vericache", method, 5, draft_weights=kind)
    run_cell(tiny.decoder(), setup, items, on_end=lambda done: ended.update({done.request_id: done}))
    return [ended[item.request.id] for item in items]


def blocked(decoder: Decoder) -> list[BlockedLinear]:
    return [each for each in decoder.weights.linears() if isinstance(each, BlockedLinear)]
