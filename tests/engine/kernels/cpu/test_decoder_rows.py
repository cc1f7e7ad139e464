"""The decoder's per-row operations, in both forms, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vcbench.engine.model.linear import RowMode
from vcbench.engine.model.row_operations import CpuRows, RowOperations, TorchRows

FORMS = [CpuRows(), TorchRows(32, RowMode())]
EPS = 1e-5


@pytest.fixture(params=FORMS, ids=lambda form: type(form).__name__)
def rows(request: pytest.FixtureRequest) -> RowOperations:
    form: RowOperations = request.param
    return form


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("size", [5, 16, 48, 60, 576])
def test_rms_norm(rows: RowOperations, size: int) -> None:
    x, weight = draw(7, size), draw(size, seed=1)

    torch.testing.assert_close(rows.rms_norm(x, weight, EPS).double(), exact_norm(x, weight), rtol=2e-6, atol=1e-6)


def test_rms_norm_of_a_zero_row_is_zero(rows: RowOperations) -> None:
    assert rows.rms_norm(torch.zeros(1, 48), torch.ones(48), EPS).abs().max() == 0


@pytest.mark.parametrize("size", [20, 64])
def test_norm_heads_touches_its_heads_alone(rows: RowOperations, size: int) -> None:
    x, weight = draw(3, 4 * size), draw(size, seed=1)
    expected = x.double()
    expected[:, size : 3 * size] = exact_norm(x[:, size : 3 * size].unflatten(1, (2, size)), weight).flatten(1)
    rows.norm_heads(x, size, 2, weight, EPS)

    torch.testing.assert_close(x.double(), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("size", [20, 64])
def test_rotate_turns_pairs_by_the_angle_of_the_position(rows: RowOperations, size: int) -> None:
    x, half = draw(3, 3 * size), size // 2
    positions = torch.tensor([0, 4, 2])
    angles = draw(5, half, seed=1).double()
    expected = x.double()
    for row, position in enumerate(positions.tolist()):
        c, s = angles[position].cos(), angles[position].sin()
        for start in (0, size):
            a, b = (x[row, start + i : start + i + half].double() for i in (0, half))
            expected[row, start : start + size] = torch.cat([a * c - b * s, b * c + a * s])
    rows.rotate(x, 2, size, positions, angles.cos().float(), angles.sin().float())

    torch.testing.assert_close(x.double(), expected, rtol=0, atol=1e-6)


def test_gated_silu(rows: RowOperations) -> None:
    gate, up = 20 * draw(5, 37), draw(5, 37, seed=1)
    gate[0, :4] = torch.tensor([200.0, -200.0, 0.0, -88.5])
    expected = torch.nn.functional.silu(gate.double()) * up.double()

    torch.testing.assert_close(rows.gated_silu(torch.cat([gate, up], 1)).double(), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 16, 31, 33, 65])
def test_rows_do_not_depend_on_their_number(rows: RowOperations, count: int) -> None:
    x, weight = draw(70, 160), draw(160, seed=1)
    for start in (0, 70 - count):
        part = x[start : start + count]
        span = slice(start, start + count)
        assert torch.equal(rows.rms_norm(part.clone(), weight, EPS), rows.rms_norm(x, weight, EPS)[span])
        assert torch.equal(rows.gated_silu(part.clone()), rows.gated_silu(x)[span])


def test_arg_max_takes_the_first_of_equals(rows: RowOperations) -> None:
    logits = torch.tensor(
        [[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, -0.5, -0.5], [-5.0, -4.0, -4.5, 9.0]]
    )

    assert rows.arg_max(logits) == [1, 0, 2, 3]


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_arg_max_of_a_row_that_is_not_finite(rows: RowOperations, fault: float, place: int) -> None:
    logits = draw(3, 5)
    expected = logits.argmax(1).tolist()
    logits[1, place] = fault

    assert rows.arg_max(logits) == [expected[0], -1, expected[2]]


def test_arg_max_of_a_row_of_nan(rows: RowOperations) -> None:
    assert rows.arg_max(torch.full((1, 5), float("nan"))) == [-1]
