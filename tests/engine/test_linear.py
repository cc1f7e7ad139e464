"""Row plans: what the probe finds, what it cannot, and that padding changes no bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vcbench.engine.linear import FREE, Linear, RowMode, RowPlan, plan_layers, probe, run_planned
from vcbench.errors import InexactError

CPU = torch.device("cpu")
FEATURES = 24


def scaled_by(factor: Callable[[int], float]) -> Callable[[Tensor], Tensor]:
    """A product whose bits depend on the number of rows in the call."""
    return lambda x: x * factor(x.shape[0])


def probed(product: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32) -> RowPlan:
    return probe(product, FEATURES, dtype, CPU)


def test_an_invariant_product_is_called_as_it_is() -> None:
    assert probed(lambda x: x * 2) == FREE


def test_a_kernel_for_few_rows_is_padded_away() -> None:
    assert probed(scaled_by(lambda rows: 1.5 if rows < 3 else 2.0)) == RowPlan(3)
    assert probed(scaled_by(lambda rows: 1.5 if rows < 8 else 2.0)) == RowPlan(8)


def test_a_kernel_that_changes_with_every_row_count_gets_fixed_tiles() -> None:
    assert probed(scaled_by(lambda rows: 1 + rows / 64)) == RowPlan(8, fixed=True)


def test_a_product_that_depends_on_the_place_in_the_call_is_refused() -> None:
    with pytest.raises(InexactError, match=r"24 features on cpu .*set engine.exactness: fast to go on"):
        probed(lambda x: x + torch.arange(x.shape[0])[:, None])


def test_below_float32_only_fixed_tiles_are_trusted() -> None:
    """Another order of summation rounds away almost everywhere, so a probe does not see it."""
    assert probed(lambda x: x * 2, torch.bfloat16).fixed
    assert probed(lambda x: x * 2, torch.float16).fixed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("inner", "outer"), [(64, 48), (576, 960), (1536, 576)])
def test_planned_layers_are_invariant_where_every_sum_cancels(dtype: torch.dtype, inner: int, outer: int) -> None:
    """The exact result is 0, so that what is left is the order of summation and nothing else."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(inner, generator=generator)
    half = torch.randn((outer, inner // 2), generator=generator)
    layer = Linear(torch.cat([half, -half], 1)[:, order].to(dtype), None, RowMode())
    layer.plan = probe(Linear(torch.randn((outer, inner)).to(dtype), None, RowMode()).product, inner, dtype, CPU)
    same = torch.randn((65, inner // 2), generator=generator)
    x = torch.cat([same, same], 1)[:, order].to(dtype)
    together = layer(x)

    assert together.count_nonzero() > 0
    for rows in (1, 2, 3, 5, 8, 25, 64):
        for start in (0, 65 - rows):
            assert torch.equal(layer(x[start : start + rows]), together[start : start + rows])


@pytest.mark.parametrize("plan", [FREE, RowPlan(4), RowPlan(8, fixed=True), RowPlan(64, fixed=True)])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 64, 65])
def test_padding_is_cut_off_again(plan: RowPlan, rows: int) -> None:
    x = torch.arange(rows * 3, dtype=torch.float32).view(rows, 3)
    seen: list[int] = []

    def product(part: Tensor) -> Tensor:
        seen.append(part.shape[0])
        return part * 2

    assert torch.equal(run_planned(product, plan, x), x * 2)
    assert set(seen) == ({plan.minimum} if plan.fixed else {max(rows, plan.minimum)})


def test_bulk_mode_suspends_the_plan() -> None:
    mode = RowMode()
    layer = Linear(torch.randn(5, 3).double(), None, mode)
    layer.plan = RowPlan(8, fixed=True)
    seen: list[int] = []
    layer.product = lambda x: seen.append(x.shape[0]) or x  # type: ignore[method-assign, func-returns-value]
    layer(torch.zeros(3, 3))
    mode.bulk = True
    layer(torch.zeros(3, 3))

    assert seen == [8, 3]


def test_every_shape_is_probed_once_and_layers_of_a_shape_share_their_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def count(product: Callable[[Tensor], Tensor], in_features: int, *_: object) -> RowPlan:
        calls.append(in_features)
        return RowPlan(len(calls))

    monkeypatch.setattr("vcbench.engine.linear.probe", count)
    layers = [Linear(torch.randn(out, inner), None, RowMode()) for out, inner in ((4, 6), (6, 4), (4, 6))]

    assert plan_layers(layers) == {"4x6": 1, "6x4": 2}
    assert calls == [6, 4]
    assert [layer.plan for layer in layers] == [RowPlan(1), RowPlan(2), RowPlan(1)]


@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_compute_the_product(bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(shape, generator=generator) for shape in ((33, 70), (9, 70)))
    offset = torch.randn(33, generator=generator) if bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())

    torch.testing.assert_close(Linear(weight, offset, RowMode())(x).double(), expected, rtol=0, atol=1e-4)
