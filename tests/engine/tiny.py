"""A small model with random weights to decode with: attention matters, and a lossy cache is still often right."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from vcbench.engine.model.decoder import Decoder
from vcbench.engine.model.load import load_decoder
from vcbench.models.architecture import Architecture, Rope
from vcbench.models.shapes import expected_shapes

ARCHITECTURE = Architecture(
    family="llama",
    vocab_size=101,
    hidden_size=48,
    intermediate_size=64,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=32,
    norm_eps=1e-5,
    max_context=512,
    rope=Rope(theta=1000.0),
)
ATTENTION = 0.2
"""How large attention's output is beside the rest."""


class RandomWeights:
    """Tensors of the right shapes; each name has a seed of its own."""

    def __init__(self, architecture: Architecture) -> None:
        self._shapes = expected_shapes(architecture)

    def tensor(self, name: str) -> Tensor:
        generator = torch.Generator().manual_seed(1 + list(self._shapes).index(name))
        drawn = torch.randn(self._shapes[name], generator=generator)
        if drawn.ndim == 1:
            return 1 + 0.1 * drawn
        return drawn * (ATTENTION if "o_proj" in name else 1.5) / drawn.shape[1] ** 0.5

    def expert(self, layer: int, index: int) -> tuple[Tensor, Tensor, Tensor]:
        raise AssertionError("this model is dense")


@cache
def decoder(architecture: Architecture = ARCHITECTURE, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model, shared by all tests; whoever patches it puts it back."""
    return fresh_decoder(architecture, dtype)


def fresh_decoder(architecture: Architecture = ARCHITECTURE, dtype: torch.dtype = torch.float32) -> Decoder:
    """The same model, for a test to damage."""
    source = RandomWeights(architecture)
    made, _ = load_decoder(architecture, source, device=torch.device("cpu"), dtype=dtype, exactness="bitwise")
    return made


def token_ids(count: int, seed: int = 0) -> tuple[int, ...]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, ARCHITECTURE.vocab_size, (count,), generator=generator).tolist())
