"""Transforms and turns of key tiles, against matrices and the rotary embedding in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vcbench.engine.codes.packing import pack
from vcbench.engine.codes.rotation import hadamard
from vcbench.engine.kernels.cpu.codes.tiles import level_table
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kernels.cpu.prerope.hadamard_tiles import transform_codes
from vcbench.engine.kernels.cpu.prerope.rope_scores import turn_rows, turned_scores
from vcbench.engine.rope import RopeTable
from vcbench.models.architecture import Rope

Array = NDArray[Any]


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def last_stage(x: Array, depth: int) -> Array:
    """x: [rows, ...] with rows depth / 2 apart summed and subtracted, head by head."""
    heads = x.reshape(-1, 2, depth // 2, *x.shape[1:])
    return np.stack([heads[:, 0] + heads[:, 1], heads[:, 0] - heads[:, 1]], axis=1).reshape(x.shape)


@pytest.mark.parametrize(("depth", "rows"), [(8, 8), (8, 16), (16, 16), (32, 32), (64, 64), (64, 256), (128, 512)])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_codes_are_transformed_but_for_one_stage(bits: int, depth: int, rows: int) -> None:
    """From vectors of 32 channels, each with steps and offsets of its own, in a random order."""
    group, vectors = 32, max(1, rows // 32) + 1
    codes = np.random.default_rng(rows).integers(0, 1 << bits, (vectors, group, BLOCK))
    packed = pack(torch.from_numpy(codes.astype(np.int32)), bits).numpy()
    scales, out = draw(vectors, 2, BLOCK), np.zeros((rows + 1, BLOCK), np.float32)
    origin = np.random.default_rng(depth).permutation(vectors * group)[:rows].astype(np.int32)
    form, levels = level_table(np.empty(0), bits, False)
    transform_codes(
        form, packed.ctypes.data, packed[0].nbytes, 5, levels.ctypes.data, scales.ctypes.data, origin.ctypes.data,
        depth, rows, out.ctypes.data,
    )  # fmt: skip
    channels = (codes * scales[:, 0, None] + scales[:, 1, None]).reshape(-1, BLOCK)[origin].astype(np.float64)
    expected = hadamard(rows).numpy() * np.sqrt(rows) @ channels

    np.testing.assert_allclose(last_stage(out[:rows], depth), expected, rtol=0, atol=2e-5 * np.sqrt(rows) * (1 << bits))
    assert not out[rows].any()


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 13])
@pytest.mark.parametrize("depth", [12, 64, 80])
def test_turned_queries_meet_turned_keys(depth: int, rows: int, paired: bool) -> None:
    """Scores are those of keys at positions 192 .. 255, whose last stage may be the query's."""
    rope = RopeTable(Rope(theta=1000.0), depth, torch.device("cpu")).blocks
    queries, tile, start = draw(rows, depth), draw(depth, BLOCK), 3 * BLOCK
    cos, sin = rope.cos.numpy(), (-rope.sin if paired else rope.sin).numpy()
    first_cos, first_sin = (x[3].numpy() for x in rope.starts(4 * BLOCK))
    turned, scores = np.zeros((rows + 1, depth), np.float32), np.full((rows + 1, BLOCK + 4), 7, np.float32)
    turn_rows(
        queries.ctypes.data, rows, depth // 2, first_cos.ctypes.data, first_sin.ctypes.data, paired, turned.ctypes.data
    )
    turned_scores(
        rows, turned.ctypes.data, tile.ctypes.data, cos.ctypes.data, sin.ctypes.data, depth // 2, scores.ctypes.data,
        BLOCK + 4,
    )  # fmt: skip
    plain = last_stage(tile, depth) if paired else tile
    keys = rope.rotated(torch.from_numpy(plain.T.copy()), start).double().numpy()

    np.testing.assert_allclose(scores[:rows, :BLOCK], queries.astype(np.float64) @ keys.T, rtol=0, atol=1e-4)
    assert not turned[rows].any()
    assert (scores[rows] == 7).all()
    assert (scores[:, BLOCK:] == 7).all()
