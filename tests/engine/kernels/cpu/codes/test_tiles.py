"""Decoded tiles, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vcbench.engine.codes.packing import pack
from vcbench.engine.kernels.cpu.codes.products import TABLE8, bits_of
from vcbench.engine.kernels.cpu.codes.tiles import decode_by_lane, decode_by_line, decode_by_table, level_table
from vcbench.engine.kernels.cpu.exact.attention import BLOCK

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


@pytest.mark.parametrize("form", [2, 3, 4])
def test_lines_have_tables_of_their_own(form: int) -> None:
    codes, packed, _ = drawn_codes(form, BLOCK)
    tables = np.tile(draw(LINES, 1 << form), 16 >> form)
    out = np.zeros((LINES + 1, BLOCK), np.float32)
    decode_by_table(form, packed.ctypes.data, tables.ctypes.data, out.ctypes.data, LINES)

    np.testing.assert_array_equal(out[:LINES], np.take_along_axis(tables, codes, axis=1))
    assert not out[LINES].any()
