"""int4: its grid, its bytes, and its error on a Gaussian."""

from __future__ import annotations

import pytest
import torch

from tests.compressors import tiny
from vcbench.compressors.int4 import Int4, Int4Options
from vcbench.engine.kv.cache import KVCache


def compressed(keys: torch.Tensor) -> KVCache:
    return Int4(Int4Options()).compress(tiny.prefill_of(tiny.full_cache(keys)), seed=0)


def test_error_on_a_gaussian() -> None:
    """A-Q-2: groups of 128 at 4 bits."""
    keys = torch.randn((1, 2, 2048, 128), generator=torch.Generator().manual_seed(0))
    error = (compressed(keys).materialize(0)[0] - keys[0]).pow(2).mean()

    assert error.item() == pytest.approx(0.00995, rel=0.01)


def test_sixteen_levels_a_head_and_both_ends_exact() -> None:
    keys = torch.arange(16.0).repeat_interleave(8).expand(1, 1, 5, 128) - 3.0

    assert torch.equal(compressed(keys).materialize(0)[0], keys[0])


def test_a_constant_head_is_exact() -> None:
    """A-Q-3."""
    assert torch.equal(compressed(torch.full((1, 1, 3, 32), 1.5)).materialize(0)[0], torch.full((1, 3, 32), 1.5))


def test_bytes() -> None:
    """4 + 32 / D bits an element, in whole blocks of 64 tokens."""
    held = compressed(torch.randn(1, 2, 640, 128)).nbytes()
    elements = 2 * 2 * 640 * 128

    assert held["codes"] == elements // 2
    assert held["steps"] == held["minima"] == 2 * elements // 128
    assert Int4.estimate_bytes(Int4Options(), tiny.ARCHITECTURE, 100, 2) == 100 * 3 * 2 * 2 * (10 + 4)
