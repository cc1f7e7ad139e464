"""Linear layers: rows that do not depend on their call, by construction on CPU and by probed row tiles elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vcbench.engine.model.linear import BlockedLinear, Linear, RowMode, TiledLinear, in_tiles, set_tiles, smallest_tile
from vcbench.errors import InexactError

CPU = torch.device("cpu")
FEATURES = 24


def scaled_by(factor: Callable[[int], float]) -> Callable[[Tensor], Tensor]:
    """A product whose bits depend on the number of rows in the call."""
    return lambda x: x * factor(x.shape[0])


def probed(product: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32) -> int:
    return smallest_tile(product, FEATURES, dtype, CPU)


def test_even_an_invariant_product_is_called_in_tiles() -> None:
    """Another order of summation rounds away almost everywhere below float32, so a probe alone is not trusted."""
    assert probed(lambda x: x * 2) == 8


def test_a_kernel_that_changes_with_every_row_count_gets_fixed_tiles() -> None:
    assert probed(scaled_by(lambda rows: 1 + rows / 64)) == 8


def test_a_product_that_depends_on_the_place_in_the_call_is_refused() -> None:
    with pytest.raises(InexactError, match=r"24 features on cpu .*set engine.exactness: fast to go on"):
        probed(lambda x: x + torch.arange(x.shape[0])[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("inner", "outer"), [(64, 48), (576, 960), (1536, 576)])
def test_planned_layers_are_invariant_where_every_sum_cancels(dtype: torch.dtype, inner: int, outer: int) -> None:
    """The exact result is 0, so that what is left is the order of summation and nothing else."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(inner, generator=generator)
    half = torch.randn((outer, inner // 2), generator=generator)
    weight = torch.cat([half, -half], 1)[:, order].to(dtype)
    exact = dtype == torch.float32
    layer: Linear = BlockedLinear(weight, None) if exact else TiledLinear(weight, None, RowMode())
    set_tiles([layer])
    same = torch.randn((65, inner // 2), generator=generator)
    x = torch.cat([same, same], 1)[:, order].to(dtype)
    together = layer(x)

    assert together.count_nonzero() > 0
    for rows in (1, 2, 3, 5, 8, 25, 64):
        for start in (0, 65 - rows):
            assert torch.equal(layer(x[start : start + rows]), together[start : start + rows])


@pytest.mark.parametrize("tile", [0, 8, 64])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 64, 65])
def test_padding_is_cut_off_again(tile: int, rows: int) -> None:
    x = torch.arange(rows * 3, dtype=torch.float32).view(rows, 3)
    seen: list[int] = []

    def product(part: Tensor) -> Tensor:
        seen.append(part.shape[0])
        return part * 2

    assert torch.equal(in_tiles(product, tile, x), x * 2)
    assert set(seen) == {tile or rows}


def test_bulk_mode_suspends_the_tiles() -> None:
    mode = RowMode()
    layer = TiledLinear(torch.randn(5, 3).double(), None, mode)
    layer.tile = 8
    seen: list[int] = []
    layer.product = lambda x: seen.append(x.shape[0]) or x
    layer(torch.zeros(3, 3))
    mode.bulk = True
    layer(torch.zeros(3, 3))

    assert seen == [8, 3]


def test_every_shape_is_probed_once_and_layers_of_a_shape_share_their_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def count(product: Callable[[Tensor], Tensor], inputs: int, *_: object) -> int:
        calls.append(inputs)
        return 8 * len(calls)

    monkeypatch.setattr("vcbench.engine.model.linear.smallest_tile", count)
    layers = [TiledLinear(torch.randn(out, inner), None, RowMode()) for out, inner in ((4, 6), (6, 4), (4, 6))]

    assert set_tiles([*layers, BlockedLinear(torch.randn(4, 6), None)]) == {"4x6": 8, "6x4": 16}
    assert calls == [6, 4]
    assert [layer.tile for layer in layers] == [8, 16, 8]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outputs", "inputs", "rows"), [(33, 70, 9), (64, 192, 1), (130, 193, 97), (1, 1, 200)])
def test_blocked_layers_compute_the_product(bias: bool, outputs: int, inputs: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(shape, generator=generator) for shape in ((outputs, inputs), (rows, inputs)))
    offset = torch.randn(outputs, generator=generator) if bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())

    torch.testing.assert_close(BlockedLinear(weight, offset)(x).double(), expected, rtol=0, atol=1e-4)
