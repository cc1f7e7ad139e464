"""One kernel call for a batch gives each request, bit for bit, what it gets alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.engine.reference import draw, shape_of
from vcbench.engine.attention.cpu_codes import CodeBatch
from vcbench.engine.attention.cpu_prerope import UnrotatedBatch
from vcbench.engine.attention.forward import BatchAttention
from vcbench.engine.codes.codebook import Codebooks, normal_float
from vcbench.engine.codes.codebook_cache import NonuniformCache
from vcbench.engine.codes.coders import ClippedCoder, DirectionCoder, FP8Coder
from vcbench.engine.codes.frames import GroupedHeads, Kind, Turned
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.rotation import random_rotation
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.kv.ragged import RaggedCache
from vcbench.engine.kv.stores import KVShape, PageBatch
from vcbench.engine.rope import RopeTable
from vcbench.models.architecture import Rope

HEADS, KV_HEADS, SIZE = 6, 3, 64
SHAPE = shape_of(heads=HEADS, kv_heads=KV_HEADS, head_dim=SIZE)
PROMPTS = (300, 65, 700)
CHANNELS = Scheme(
    key_bits=3, value_bits=4, key_axis="channel", key_group=32, value_group=32, symmetric=False, key_flush=64,
    value_residual=40,
)  # fmt: skip
INT8 = Scheme.per_token(SIZE, key_bits=8, value_bits=8, symmetric=True)
Make = Callable[[FullCache], KVCache]


def full_cache(tokens: int, seed: int, shape: KVShape = SHAPE) -> FullCache:
    full = FullCache(shape)
    for layer in range(shape.n_layers):
        k, v = (draw(tokens, shape.n_kv_heads, shape.head_dim, seed=seed + 2 * layer + i) for i in (0, 1))
        full.write(layer, k, v)
    full.advance(tokens)
    full.commit(tokens)
    return full


def some(tokens: int, count: int, heads: int) -> Tensor:
    """Positions to keep, [heads, count], different for each head."""
    generator = torch.Generator().manual_seed(count)
    return torch.stack([torch.randperm(tokens, generator=generator)[:count].sort().values for _ in range(heads)])


def kept(full: FullCache) -> KVCache:
    positions = torch.stack([some(full.tokens, full.tokens // 4, KV_HEADS)] * SHAPE.n_layers)
    return KeptCache.gather(full, positions)


def ragged(full: FullCache) -> KVCache:
    """Heads of the first layer keep differently many, those of the second equally many."""
    n = full.tokens
    return RaggedCache.gather(
        full, [[some(n, n // 2, 1), some(n, 5, 1), some(n, n - 1, 1)], [some(n, n // 3, KV_HEADS)]]
    )


def turboquant(full: FullCache) -> KVCache:
    """A coder and a frame of its own for each cache, equal in content."""
    scheme = Scheme.per_token(SIZE, key_bits=4, value_bits=3, symmetric=True)
    coder = DirectionCoder(4, 3, "unbiased", SIZE, torch.device("cpu"))
    return QuantisedCache.of_prompt(full, scheme, coder, Turned(random_rotation("hadamard", SIZE, 0)))


def fp8(full: FullCache) -> KVCache:
    return QuantisedCache.of_prompt(full, INT8, FP8Coder(0.5, torch.device("cpu")))


_KINDS: tuple[Kind, ...] = ("keys", "values")
ROPE = RopeTable(Rope(theta=1000.0), SIZE, torch.device("cpu"))
BOOKS = Codebooks(
    bits=3, levels=dict.fromkeys(_KINDS, normal_float(3).repeat(2, 1)), offsets=None, ranges=None, outliers=0.01,
    decoded=dict.fromkeys(_KINDS, normal_float(3).repeat(2, 1)),
)  # fmt: skip


def kvquant(full: FullCache) -> KVCache:
    return NonuniformCache.of_prompt(full, BOOKS, ROPE, 5)


def rotatekv(full: FullCache) -> KVCache:
    """Exact tokens and a frame of its own for each cache; the frames are equal."""
    order = torch.stack([torch.randperm(KV_HEADS * SIZE, generator=torch.Generator().manual_seed(n)) for n in (0, 1)])
    scheme = Scheme(key_bits=4, value_bits=2, key_axis="token", key_group=32, value_group=32, symmetric=False)
    exact = [torch.tensor([0, 3, full.tokens - 1]), torch.tensor([40])]
    frame = GroupedHeads(ROPE, order, together=1, group=32)
    return QuantisedCache.of_prompt(full, scheme, ClippedCoder(4, 2, 1.0), frame, exact)


MAKES: dict[str, Make] = {
    "full": lambda full: full,
    "kept": kept,
    "ragged": ragged,
    "int8": lambda full: QuantisedCache.of_prompt(full, INT8),
    "channels": lambda full: QuantisedCache.of_prompt(full, CHANNELS),
    "turboquant": turboquant,
    "fp8": fp8,
    "kvquant": kvquant,
    "rotatekv": rotatekv,
}


def caches(make: Make) -> list[KVCache]:
    return [make(full_cache(tokens, seed=10 * tokens)) for tokens in PROMPTS]


def one_pass(parts: list[tuple[KVCache, int]], seed: int, *, together: bool) -> Tensor:
    """Attention of new rows in every layer, [L * n, H, D]; the rows are committed."""
    rows = sum(count for _, count in parts)
    calls = [BatchAttention(parts)] if together else [BatchAttention([part]) for part in parts]
    out = []
    for layer in range(SHAPE.n_layers):
        q, k, v = (
            draw(rows, heads, SIZE, seed=seed + 3 * layer + i) for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))
        )
        sizes = [rows] if together else [count for _, count in parts]
        pieces = zip(calls, *(x.split(sizes) for x in (q, k, v)), strict=True)
        out += [call(layer, *piece) for call, *piece in pieces]
    for cache, count in parts:
        cache.advance(count)
        cache.commit(count)
    return torch.cat(out)


@pytest.mark.parametrize("rows", [(1, 1, 1), (3, 1, 20), (2, 40, 1)])
@pytest.mark.parametrize("name", MAKES)
def test_a_batch_gives_each_request_what_it_gets_alone(name: str, rows: tuple[int, ...]) -> None:
    joined, alone = caches(MAKES[name]), caches(MAKES[name])
    for step in range(2):
        ours = one_pass(list(zip(joined, rows, strict=True)), seed=100 * step, together=True)
        theirs = one_pass(list(zip(alone, rows, strict=True)), seed=100 * step, together=False)

        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", MAKES)
def test_caches_alike_are_joined(name: str) -> None:
    made = caches(MAKES[name])
    joined = made[0].join([(cache, 1) for cache in made])

    assert isinstance(joined, PageBatch | CodeBatch | UnrotatedBatch)


@pytest.mark.parametrize("name", ["int8", "channels", "turboquant"])
def test_entries_are_stored_alike_joined_and_alone(name: str) -> None:
    joined, alone = (MAKES[name](full_cache(300, seed=5)) for _ in range(2))
    k, v = (draw(3, KV_HEADS, SIZE, seed=seed) for seed in (1, 2))
    batch = joined.join([(joined, 3)])
    assert batch is not None
    for layer in range(SHAPE.n_layers):
        batch.write(layer, k, v)
        alone.write(layer, k, v)
    for cache in (joined, alone):
        cache.advance(3)
    for layer in range(SHAPE.n_layers):
        for ours, theirs in zip(joined.materialize(layer), alone.materialize(layer), strict=True):
            assert torch.equal(ours, theirs)


def test_caches_unlike_are_not() -> None:
    full, other = full_cache(70, seed=1), full_cache(80, seed=2)
    pairs = [("int8", "channels"), ("int8", "fp8"), ("int8", "kept"), ("full", "int8"), ("kept", "ragged")]
    pairs += [("kvquant", "rotatekv"), ("rotatekv", "turboquant")]
    for first, second in pairs:
        one, two = MAKES[first](full), MAKES[second](other)

        assert one.join([(one, 1), (two, 1)]) is None


def test_unlike_caches_are_attended_to_one_by_one() -> None:
    def mixed() -> list[KVCache]:
        return [make(full_cache(90, seed=3)) for make in (MAKES["int8"], MAKES["kept"], MAKES["channels"])]

    rows = (2, 1, 3)
    ours = one_pass(list(zip(mixed(), rows, strict=True)), seed=7, together=True)
    theirs = one_pass(list(zip(mixed(), rows, strict=True)), seed=7, together=False)

    assert torch.equal(ours, theirs)


def test_groups_that_share_a_vector_are_refused() -> None:
    scheme = Scheme(
        key_bits=4, value_bits=4, key_axis="token", key_group=SIZE, value_group=8, symmetric=False
    )  # fmt: skip
    cache = QuantisedCache.of_prompt(full_cache(70, seed=4), scheme)

    with pytest.raises(ValueError, match="multiples of 16"):
        cache.join([(cache, 1)])
