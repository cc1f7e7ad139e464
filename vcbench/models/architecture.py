"""The shape of a decoder: everything that the engine needs to know about a model besides its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding. Fields beyond `theta` and `kind` are the scaling's own, named as in HF configs."""

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Sparse mixture of experts: `dense_layers` keep an ordinary MLP."""

    count: int
    per_token: int
    intermediate_size: int
    normalise: bool
    dense_layers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A decoder of one of `FAMILIES`."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int
    rope: Rope = field(default_factory=Rope)
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    experts: Experts | None = None
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.n_heads // self.n_kv_heads

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of the full KV cache per token."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * element_bytes
