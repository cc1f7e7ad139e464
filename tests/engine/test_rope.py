"""Rotary tables against those of transformers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vcbench.engine.rope import RopeTable, frequencies
from vcbench.models.architecture import Rope
from vcbench.models.hf_config import parse_architecture

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
TABLES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    {**LLAMA3, "original_max_position_embeddings": 8192},
    {**LLAMA3, "factor": 32.0, "high_freq_factor": 2.0, "original_max_position_embeddings": 256},
    {**YARN, "original_max_position_embeddings": 32768},
    {**YARN, "original_max_position_embeddings": 128, "beta_fast": 20.0, "beta_slow": 3.0},
    {**YARN, "original_max_position_embeddings": 4096, "truncate": False},
    {**YARN, "original_max_position_embeddings": 4096, "attention_factor": 1.3},
    {**YARN, "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 1.0},
    {**YARN, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0},
    {**YARN, "factor": 1.0, "original_max_position_embeddings": 4096},
]


def config_of(table: dict[str, Any], theta: float, head_dim: int) -> LlamaConfig:
    """A configuration whose context is just what the scaling makes of the original one."""
    original = table.get("original_max_position_embeddings", 4096)
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=int(original * table.get("factor", 1)),
        rope_parameters={"rope_theta": theta, **table},
    )


@pytest.mark.parametrize("head_dim", [20, 64, 128])
@pytest.mark.parametrize("theta", [10000.0, 1000000.0])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: " ".join(str(value) for value in table.values()))
def test_frequencies_are_those_of_transformers(table: dict[str, Any], theta: float, head_dim: int) -> None:
    config = config_of(table, theta, head_dim)
    expected, scale = ROPE_INIT_FUNCTIONS[table["rope_type"]](config, torch.device("cpu"))
    ours, our_scale = frequencies(parse_architecture(config.to_dict()).rope, head_dim)

    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert our_scale == pytest.approx(scale)


@pytest.mark.parametrize("head_dim", [20, 128])
def test_default_frequencies(head_dim: int) -> None:
    expected = 5000.0 ** -(torch.arange(head_dim // 2).double() * 2 / head_dim)
    ours, scale = frequencies(Rope(theta=5000.0), head_dim)

    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=0)
    assert scale == 1


def test_the_table_holds_scaled_cosines_and_sines_however_it_grew() -> None:
    rope = Rope(kind="yarn", factor=4.0, original_max_position=64, attention_factor=1.5)
    grown, whole = (RopeTable(rope, 32, torch.device("cpu")) for _ in range(2))
    for positions in (1, 5, 1500, 1200, 5000):
        grown.reserve(positions)
        assert len(grown.cos) >= positions
    whole.reserve(len(grown.cos))
    angles = torch.arange(5000).double()[:, None] * frequencies(rope, 32)[0].double()

    assert torch.equal(grown.cos, whole.cos)
    assert torch.equal(grown.sin, whole.sin)
    torch.testing.assert_close(grown.cos[:5000].double(), 1.5 * angles.cos(), rtol=0, atol=1e-3)
    torch.testing.assert_close(grown.sin[:100].double(), 1.5 * angles[:100].sin(), rtol=0, atol=1e-5)


def test_every_field_of_a_scaling_acts() -> None:
    """A field that was read and then forgotten would change nothing."""
    base = Rope(kind="yarn", factor=4.0, original_max_position=2048)
    changes = {
        "theta": 5000.0, "factor": 8.0, "original_max_position": 512, "beta_fast": 8.0, "beta_slow": 4.0,
        "attention_factor": 2.0, "truncate": False,
    }  # fmt: skip
    for name, value in changes.items():
        ours, scale = frequencies(Rope(**{**asdict(base), name: value}), 64)
        plain, plain_scale = frequencies(base, 64)
        assert not torch.equal(ours, plain) or scale != plain_scale, name


@pytest.mark.parametrize("rope", [Rope(theta=1000.0), Rope(kind="yarn", factor=4.0, original_max_position=64)])
def test_block_by_block_it_is_the_same_embedding(rope: Rope) -> None:
    """But for the rounding of far positions' angles, which is the table's; and what is turned comes back."""
    table = RopeTable(rope, 32, torch.device("cpu"))
    x = torch.randn((2, 300, 32), generator=torch.Generator().manual_seed(0))
    for start in (0, 64, 7, 5000):
        turned = table.blocks.rotated(x, start)
        torch.testing.assert_close(turned, table.rotated(x, start), rtol=0, atol=1e-4 if start < 300 else 5e-3)
        torch.testing.assert_close(table.blocks.pre_rope(turned, start), x, rtol=0, atol=3e-6)
    first, place = table.blocks.starts(130), table.blocks
    cos = first[0][2, :, None] * place.cos - first[1][2, :, None] * place.sin
    torch.testing.assert_close(cos, table.cos[128:192].t(), rtol=0, atol=1e-4)
    assert table.blocks.starts(100) is table.blocks.starts(130)
