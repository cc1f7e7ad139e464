"""Decoded tiles, Hadamard transforms and the rotary embedding of tiles, against numpy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vcbench.engine.kernels.attention import BLOCK
from vcbench.engine.kernels.codes import TABLE8, bits_of
from vcbench.engine.kernels.tiles import decode_by_lane, decode_by_line, level_table
from vcbench.engine.kernels.turns import hadamard_tile, rope_tile
from vcbench.engine.packing import pack
from vcbench.engine.rope import RopeTable
from vcbench.engine.rotation import hadamard
from vcbench.models.architecture import Rope

Array = NDArray[Any]
FORMS = [1, 2, 3, 4, TABLE8]
LINES = 5


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def drawn_codes(form: int, width: int) -> tuple[Array, Array, Array]:
    """Codes [LINES, width], the same packed, and a table of random levels."""
    bits = bits_of(form)
    codes = np.random.default_rng(width).integers(0, 1 << bits, (LINES, width))
    packed = pack(torch.from_numpy(codes.astype(np.int32)), bits).numpy()
    found, levels = level_table(draw(1 << bits), bits, False)
    assert found == form
    assert levels.size >= 16
    return codes, packed, levels


@pytest.mark.parametrize("form", FORMS)
def test_lanes_have_scales_of_their_own(form: int) -> None:
    codes, packed, levels = drawn_codes(form, BLOCK)
    steps, offsets, out = draw(BLOCK), draw(BLOCK + 1)[1:], np.zeros((LINES + 1, BLOCK), np.float32)
    addresses = [x.ctypes.data for x in (packed, levels, steps, offsets, out)]
    decode_by_lane(form, *addresses, LINES)

    np.testing.assert_allclose(out[:LINES], levels[codes] * steps + offsets, rtol=0, atol=1e-6)
    assert not out[LINES].any()


@pytest.mark.parametrize("width", [64, 128, 192, 48, 80, 32, 16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group", [16, 8, 0])
def test_lines_have_scales_by_group(form: int, width: int, group: int) -> None:
    """Group 0 is the whole line; some widths and groups do not lie in vectors."""
    if width * (1 if form in (1, 3) else bits_of(form)) % 8 or width % (4 if form != 3 else 8):
        pytest.skip("such lines have no whole bytes")
    codes, packed, levels = drawn_codes(form, width)
    groups = width // group if group else 1
    steps, offsets, out = draw(LINES, groups), draw(LINES + 1, groups)[1:], np.zeros((LINES + 1, width), np.float32)
    addresses = [x.ctypes.data for x in (packed, levels, steps, offsets)]
    decode_by_line(form, *addresses, groups, 1, group or width, out.ctypes.data, LINES, width)
    wide = [np.repeat(x, width // groups, axis=1) for x in (steps, offsets)]

    np.testing.assert_allclose(out[:LINES], levels[codes] * wide[0] + wide[1], rtol=0, atol=1e-6)
    assert not out[LINES].any()


@pytest.mark.parametrize("rows", [8, 16, 32, 64, 128, 256, 512])
def test_the_transform_of_reordered_rows_is_the_matrix(rows: int) -> None:
    source, out = draw(rows + 3, BLOCK), np.zeros((rows, BLOCK), np.float32)
    order = np.random.default_rng(rows).permutation(rows + 3)[:rows].astype(np.int32)
    hadamard_tile(source.ctypes.data, order.ctypes.data, rows, out.ctypes.data)
    expected = hadamard(rows).numpy().astype(np.float64) * np.sqrt(rows) @ source[order]

    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 * np.sqrt(rows))


def test_the_rotary_embedding_of_a_tile_is_that_of_its_positions() -> None:
    rope, keys = RopeTable(Rope(theta=1000.0), 24, torch.device("cpu")), torch.from_numpy(draw(BLOCK, 24))
    cos, sin = (x.numpy() for x in rope.by_block(5 * BLOCK - 1))
    assert cos.shape[0] >= 5
    tile = keys.t().contiguous().numpy()
    rope_tile(tile.ctypes.data, cos[4].ctypes.data, sin[4].ctypes.data, 12)

    np.testing.assert_allclose(tile.T, rope.rotated(keys, 4 * BLOCK).numpy(), rtol=0, atol=1e-6)
