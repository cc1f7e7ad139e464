"""Random caches, prefills and a small model with random weights, for tests of compressors."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.engine.model.load import load_decoder
from vcbench.models.architecture import Architecture, Rope

ARCHITECTURE = Architecture(
    family="llama",
    vocab_size=97,
    hidden_size=48,
    intermediate_size=64,
    n_layers=3,
    n_heads=6,
    n_kv_heads=2,
    head_dim=20,
    norm_eps=1e-5,
    max_context=4096,
    rope=Rope(theta=1000.0),
)


class RandomWeights:
    """Tensors of the right shapes, drawn by name."""

    def __init__(self, architecture: Architecture, *, zero_queries: bool) -> None:
        a, self.zero_queries = architecture, zero_queries
        self.shapes = {
            "embed_tokens": (a.vocab_size, a.hidden_size),
            "lm_head": (a.vocab_size, a.hidden_size),
            "q_proj": (a.n_heads * a.head_dim, a.hidden_size),
            "k_proj": (a.n_kv_heads * a.head_dim, a.hidden_size),
            "v_proj": (a.n_kv_heads * a.head_dim, a.hidden_size),
            "o_proj": (a.hidden_size, a.n_heads * a.head_dim),
            "gate_proj": (a.intermediate_size, a.hidden_size),
            "up_proj": (a.intermediate_size, a.hidden_size),
            "down_proj": (a.hidden_size, a.intermediate_size),
        }
        self.hidden = a.hidden_size

    def tensor(self, name: str) -> Tensor:
        if self.zero_queries and "q_proj" in name:
            return torch.zeros(self.shapes["q_proj"])
        shape = self.shapes.get(name.split(".")[-2], (self.hidden,))
        generator = torch.Generator().manual_seed(sum(map(ord, name)) * 31 + len(name))
        drawn = torch.randn(shape, generator=generator)
        return 1 + 0.1 * drawn if len(shape) == 1 else drawn * 1.5 / shape[-1] ** 0.5

    def expert(self, layer: int, index: int) -> tuple[Tensor, Tensor, Tensor]:
        raise AssertionError("this model is dense")


@cache
def decoder(architecture: Architecture = ARCHITECTURE, *, zero_queries: bool = False) -> Decoder:
    """A model whose attention is far from uniform, or quite uniform with `zero_queries`."""
    made, _ = load_decoder(
        architecture,
        RandomWeights(architecture, zero_queries=zero_queries),
        device=torch.device("cpu"),
        dtype=torch.float32,
        exactness="bitwise",
    )
    return made


def token_ids(count: int, seed: int = 0) -> list[int]:
    """Random tokens of the small model."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, ARCHITECTURE.vocab_size, (count,), generator=generator).tolist()


def shape(*, layers: int = 2, heads: int = 6, kv_heads: int = 2, size: int = 20) -> KVShape:
    """A cache shape on CPU in float32."""
    return KVShape(
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=size,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def full_cache(keys: Tensor, values: Tensor | None = None, *, heads: int | None = None) -> FullCache:
    """A committed full cache of keys and values: [L, Hk, T, D]; values are random if not given."""
    layers, kv_heads, tokens, size = keys.shape
    if values is None:
        values = torch.randn(keys.shape, generator=torch.Generator().manual_seed(5))
    cache = FullCache(shape(layers=layers, heads=heads or kv_heads, kv_heads=kv_heads, size=size))
    for layer in range(layers):
        cache.write(layer, keys[layer].transpose(0, 1), values[layer].transpose(0, 1))
    cache.advance(tokens)
    cache.commit(tokens)
    return cache


def prefill_of(cache: FullCache, queries: Tensor | None = None) -> Prefill:
    """A prefill around a cache; queries: [L, W, H, D], the last W tokens' ones."""
    return Prefill(cache=cache, first_logits=torch.zeros(1), queries=[] if queries is None else list(queries))


def positions_of(cache: KVCache) -> Tensor:
    """Positions held, [L, Hk, n]."""
    return torch.stack([cache.materialize(layer)[2] for layer in range(cache.shape.n_layers)])


def attention(q: Tensor, k: Tensor, visible_first: int) -> Tensor:
    """Softmax shares in float64, [H, n, N]: brute force. q: [n, H, D]; k: [Hk, N, D]; row i sees visible_first + i."""
    n, heads, size = q.shape
    wide = k.double().repeat_interleave(heads // k.shape[0], 0)
    logits = torch.einsum("nhd,hjd->hnj", q.double(), wide) / size**0.5
    hidden = torch.arange(k.shape[1]) >= (visible_first + torch.arange(n))[:, None]
    return torch.softmax(logits.masked_fill(hidden, float("-inf")), dim=-1)


def random_cache(tokens: int, *, layers: int = 2, kv_heads: int = 2, heads: int = 6, seed: int = 0) -> FullCache:
    """A committed full cache of normal keys and values."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn((2, layers, kv_heads, tokens, 20), generator=generator)
    return full_cache(keys, values, heads=heads)


def best(scores: Tensor, count: int) -> list[list[int]]:
    """Positions of the `count` highest scores of each row; of equal ones the later. Brute force."""
    return [sorted(sorted(range(len(row)), key=lambda j: (row[j], j))[-count:]) for row in scores.tolist()]
