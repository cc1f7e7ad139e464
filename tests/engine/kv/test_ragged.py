"""Caches whose layers and heads keep differently many entries."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors import tiny
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.ragged import RaggedCache

PROMPT = 150


def positions(counts: list[int], seed: int) -> list[Tensor]:
    """One part a head, [1, count] each."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(PROMPT, generator=generator)[:n].sort().values[None] for n in counts]


def ragged(counts: list[list[int]]) -> tuple[FullCache, RaggedCache]:
    full = tiny.random_cache(PROMPT)
    return full, RaggedCache.gather(full, [positions(row, seed) for seed, row in enumerate(counts)])


def draw(n: int, seed: int, heads: int = 2) -> Tensor:
    return torch.randn((n, heads, 20), generator=torch.Generator().manual_seed(seed))


def append(cache: FullCache | RaggedCache, n: int, seed: int) -> list[Tensor]:
    """Appends n tokens and returns what each layer's rows attended to."""
    out = []
    for layer in range(2):
        cache.write(layer, draw(n, seed + layer), draw(n, seed + 10 + layer))
        out.append(cache.attend(layer, draw(n, seed + 20 + layer, heads=6)))
    cache.advance(n)
    return out


def test_attention_is_over_each_heads_own_entries() -> None:
    """A-GEN-2, against attention in float64 over the full cache's entries, head by head."""
    counts = [[5, 70], [0, 150]]
    full, cache = ragged(counts)
    out = append(cache, 3, seed=1)
    append(full, 3, seed=1)

    for layer in range(2):
        k, v, _ = full.materialize(layer)
        for head, part in enumerate(positions(counts[layer], layer)):
            index = torch.cat([part[0], torch.arange(PROMPT, PROMPT + 3)])
            q = draw(3, 21 + layer, heads=6)[:, 3 * head : 3 * head + 3]
            shares = tiny.attention(q, k[head : head + 1, index], counts[layer][head] + 1)
            expected = torch.einsum("hnj,jd->nhd", shares, v[head, index].double())
            torch.testing.assert_close(out[layer][:, 3 * head : 3 * head + 3].double(), expected, rtol=1e-5, atol=1e-5)


def test_materialised_entries_are_padded_to_the_longest_head() -> None:
    _, cache = ragged([[2, 4], [1, 1]])
    append(cache, 1, seed=5)
    k, v, kept = cache.materialize(0)

    assert k.shape == v.shape == (2, 5, 20)
    assert kept[0].tolist()[3:] == [-1, -1]
    assert kept[:, 2].tolist()[0] == kept[1, 4] == PROMPT


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=6), st.booleans())
def test_rolled_back_drafts_leave_nothing(rounds: list[tuple[int, int]], verified: bool) -> None:
    """A-GEN-6: drafts that are partly accepted give the same cache as appending the accepted tokens alone."""
    full, drafted = ragged([[5, 70], [64, 3]])
    _, direct = ragged([[5, 70], [64, 3]])
    for number, (length, accepted) in enumerate(rounds):
        taken = min(length, accepted)
        append(drafted, length, seed=7 if verified else number)
        append(full, length, seed=number)
        append(direct, length, seed=number)
        drafted.commit(taken, full if verified else None)
        full.commit(taken)
        direct.commit(taken)

    for layer in range(2):
        assert all(map(torch.equal, drafted.materialize(layer), direct.materialize(layer)))
    assert drafted.nbytes() == direct.nbytes()
    assert all(map(torch.equal, append(drafted, 2, seed=99), append(direct, 2, seed=99)))


def test_bytes_are_those_of_the_tensors_held() -> None:
    """A-ACC-1."""
    _, cache = ragged([[5, 70], [64, 3]])
    append(cache, 2, seed=1)
    parts = [part for layer in cache.layers for part in layer]
    held = [tensor for part in parts for tensor in (*part.store.tensors(), part.positions)]

    assert sum(cache.nbytes().values()) == sum(tensor.nbytes for tensor in held)
    assert cache.nbytes()["kept"] == (5 + 70 + 64 + 3) * 2 * 20 * 4
