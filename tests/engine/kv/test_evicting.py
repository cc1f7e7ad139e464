"""Eviction while decoding, against brute force in float64, and its independence of how tokens were drafted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors import examples, tiny
from vcbench.compressors.h2o import H2O, AttentionReceived, H2OOptions
from vcbench.compressors.tova import TOVA, TOVAOptions
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.evicting import EvictingCache
from vcbench.engine.kv.query_log import QueryLog
from vcbench.engine.kv.stores import TensorStore
from vcbench.engine.model.decoder import Block, Prefill

A = examples.ARCHITECTURE
METHODS: dict[str, H2O | TOVA] = {
    "h2o": H2O(H2OOptions(budget_tokens=20, recent=0.4)),
    "h2o-no-recent": H2O(H2OOptions(budget_tokens=12, recent=0.0)),
    "tova": TOVA(TOVAOptions(budget_tokens=15)),
}
methods = pytest.mark.parametrize("name", METHODS)
PROMPT = 30
OUTPUT = tiny.token_ids(40, seed=8)


def snapshot(method: H2O | TOVA, tokens: int = PROMPT) -> Prefill:
    return examples.prefill(tiny.token_ids(tokens), method)


def compressed(method: H2O | TOVA, prefill: Prefill) -> EvictingCache:
    cache = method.compress(prefill, seed=0)
    assert isinstance(cache, EvictingCache)
    return cache


def decode(cache: EvictingCache, ids: Sequence[int]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Lossy decoding; gives each token's queries [H, D] and keys [Hk, D] by layer before the token is committed."""
    for token in ids:
        examples.decoder().forward([Block(cache, [token])])
        assert cache.queries is not None
        queries = cache.queries.row(cache.committed)
        assert queries is not None
        last = cache.entries() - 1
        yield queries, [cache.store.read_range(layer, last, last + 1)[0][:, 0] for layer in range(A.n_layers)]
        cache.commit(1)


class Reference:
    """One layer's entries by position, as the papers' algorithms go, in float64."""

    def __init__(self, cache: EvictingCache, layer: int) -> None:
        self.rule, self.newest = cache.rule, cache.committed - 1
        k, _, positions = cache.materialize(layer)
        self.heads = [
            {
                int(p): (key.double(), float(s))
                for p, key, s in zip(positions[h], k[h], cache.scores[layer, h], strict=False)
            }
            for h in range(A.n_kv_heads)
        ]

    def step(self, q: Tensor, k: Tensor) -> None:
        self.newest += 1
        for head, entries in enumerate(self.heads):
            entries[self.newest] = (k[head].double(), 0.0)
        shares = [self.shares(q, head) for head in range(A.n_kv_heads)]
        if self.rule.shared:
            shares = [sum(shares) / A.n_heads] * A.n_kv_heads  # type: ignore[list-item]
        for head, entries in enumerate(self.heads):
            for share, position in zip(shares[head].tolist(), list(entries), strict=True):
                key, score = entries[position]
                entries[position] = (key, share + score * (self.rule.scores == "sum"))
            if len(entries) > self.rule.budget:
                old = [p for p in entries if p <= self.newest - max(1, self.rule.recent)]
                del entries[min(old, key=lambda p: (entries[p][1], p))]

    def shares(self, q: Tensor, head: int) -> Tensor:
        """Summed over the head's group."""
        keys = torch.stack([key for key, _ in self.heads[head].values()])
        group = slice(head * A.group_size, (head + 1) * A.group_size)
        return torch.softmax(q[group].double() @ keys.mT / A.head_dim**0.5, -1).sum(0)


@methods
def test_lossy_decoding_evicts_as_published(name: str) -> None:
    cache = compressed(METHODS[name], snapshot(METHODS[name]))
    references = [Reference(cache, layer) for layer in range(A.n_layers)]
    evicted = 0
    for queries, keys in decode(cache, OUTPUT):
        for reference, q, k in zip(references, queries, keys, strict=True):
            reference.step(q, k)
    for layer, reference in enumerate(references):
        k, _, positions = cache.materialize(layer)
        for head, entries in enumerate(reference.heads):
            assert sorted(positions[head].tolist()) == sorted(entries)
            evicted += sum(position >= PROMPT for position in range(PROMPT + 40)) - sum(p >= PROMPT for p in entries)
            for slot, position in enumerate(positions[head].tolist()):
                assert torch.equal(k[head, slot].double(), entries[position][0])
                assert cache.scores[layer, head, slot].item() == pytest.approx(entries[position][1], rel=1e-4, abs=1e-6)
    assert evicted > 0
    assert cache.held == METHODS[name].options.budget_tokens


@methods
@hypothesis_settings(max_examples=15, deadline=None)
@given(rounds=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=6))
def test_verified_tokens_are_judged_alike_however_they_were_drafted(name: str, rounds: list[tuple[int, int]]) -> None:
    """Committed rows of the verify pass decide, rejected ones leave nothing, and drafting itself judges nothing."""
    method, decoder = METHODS[name], examples.decoder()
    prefill = snapshot(method)
    full = prefill.cache
    drafted, one_by_one = compressed(method, prefill), compressed(method, prefill)
    full.queries = QueryLog()
    done = 0
    for accepted, rejected in rounds:
        decoder.forward([Block(drafted, OUTPUT[done : done + accepted])])
        decoder.forward([Block(full, OUTPUT[done : done + accepted] + [1, 2, 3, 4][:rejected])])
        full.commit(accepted)
        drafted.commit(accepted, full)
        done += accepted
    full.rewind(PROMPT)
    full.queries = QueryLog()
    for token in OUTPUT[:done]:
        decoder.forward([Block(full, [token])])
        full.commit(1)
        one_by_one.commit(1, full)

    held = slice(0, drafted.held)
    assert torch.equal(drafted.positions[..., held], one_by_one.positions[..., held])
    assert torch.equal(drafted.scores[..., held], one_by_one.scores[..., held])
    assert examples.state(drafted) == examples.state(one_by_one)


def test_sums_are_those_of_the_whole_matrix_while_nothing_is_evicted() -> None:
    """A-H2O-1, over prompt and output."""
    method = H2O(H2OOptions(budget_tokens=200))
    cache = compressed(method, snapshot(method))
    for _ in decode(cache, OUTPUT):
        pass
    everything = tiny.token_ids(PROMPT) + OUTPUT
    whole = examples.decoder().prefill(everything, chunk=70, statistics=[AttentionReceived()])

    assert cache.held == len(everything)
    order = cache.positions[..., : cache.held].long().argsort(-1)
    sums = cache.scores[..., : cache.held].gather(-1, order)
    torch.testing.assert_close(sums, whole.statistic(AttentionReceived()), rtol=1e-4, atol=1e-4)


@methods
def test_memory_is_bounded_by_the_budget(name: str) -> None:
    cache = compressed(METHODS[name], snapshot(METHODS[name]))
    sizes = []
    for number, _ in enumerate(decode(cache, tiny.token_ids(200, seed=3))):
        if number in (60, 199):
            sizes.append(sum(cache.nbytes().values()))

    assert sizes[0] == sizes[1]
    assert cache.tokens == PROMPT + 200
    assert cache.held == METHODS[name].options.budget_tokens


@methods
def test_tensor_stores_do_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS[name]
    prefill = snapshot(method)
    paged = compressed(method, prefill)
    monkeypatch.setattr("vcbench.engine.kv.cache.make_store", TensorStore)
    tensors = compressed(method, prefill)
    full: FullCache = prefill.cache
    full.queries = QueryLog()
    for token in OUTPUT:
        examples.decoder().forward([Block(full, [token])])
        full.commit(1)
        for cache in (paged, tensors):
            cache.commit(1, full)

    assert isinstance(tensors.store, TensorStore)
    assert torch.equal(paged.positions, tensors.positions)
    torch.testing.assert_close(paged.scores, tensors.scores, rtol=1e-4, atol=1e-6)
    for layer in range(A.n_layers):
        for ours, theirs in zip(paged.materialize(layer), tensors.materialize(layer), strict=True):
            assert torch.equal(ours, theirs)


def test_the_log_holds_what_is_not_yet_judged() -> None:
    log = QueryLog()
    for start, count in ((5, 4), (7, 3)):
        for layer in range(2):
            log.note(layer, start, torch.full((count, 2, 3), float(10 * start + layer)))

    assert [None if (row := log.row(p)) is None else row[1][0, 0].item() for p in range(4, 11)] == [
        None, 51, 51, 71, 71, 71, None,
    ]  # fmt: skip
    assert log.nbytes() == 2 * 7 * 6 * 4
    log.keep(7, 9)
    assert [log.row(p) is None for p in range(5, 11)] == [True, True, False, False, True, True]
    log.keep(9, 9)
    assert log.nbytes() == 0
