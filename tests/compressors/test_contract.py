"""What every registered method's draft cache must do: account for its bytes, take drafts back, compress at commits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.compressors import examples, tiny
from tests.compressors.examples import ARCHITECTURE, append, as_bytes, attended, every_method, make, state
from vcbench.compressors.base import DroppingCompressor
from vcbench.engine.attention.readers import attend
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.pages import PagedStore
from vcbench.engine.model.decoder import Block

Method = tuple[str, Any]
PROMPT = 150
BOUNDARIES = [1, 2, 4, 5, 8, 9, 10, 23, 24, 25, 31, 32, 33, 63, 64, 65, 128, 130]
PAGE_TOKENS = 64

METHODS = every_method()
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def compressed(method: Method, tokens: int = PROMPT) -> tuple[FullCache, KVCache]:
    """The full cache of a prompt and the method's draft cache of it."""
    snapshot = examples.snapshot(method, tokens)
    snapshot.cache.rewind(tokens)
    return snapshot.cache, make(method).compress(snapshot, seed=3)


def kind(method: Method) -> str:
    return str(examples.lookup("compressor", method[0]).kind)


@methods
@pytest.mark.parametrize("tokens", BOUNDARIES)
def test_prompts_around_every_boundary(method: Method, tokens: int) -> None:
    full, cache = compressed(method, tokens)

    assert type(cache) is make(method).cache_class
    assert cache.tokens == cache.committed == tokens
    assert attended(cache).isfinite().all()
    for _ in range(3):
        examples.decoder().forward([Block(cache, [7, 8, 9])])
        cache.commit(2)
    assert cache.tokens == tokens + 6
    assert full.tokens == tokens


@pytest.mark.acceptance("A-GEN-1")
@methods
@pytest.mark.parametrize("tokens", BOUNDARIES)
def test_a_cache_that_keeps_everything_attends_as_the_full_one_does(method: Method, tokens: int) -> None:
    """A-GEN-1, bit for bit; for `none` at every length."""
    full, cache = compressed(method, tokens)
    exact = all(
        torch.equal(ours, expected)
        for layer in range(ARCHITECTURE.n_layers)
        for ours, expected in zip(cache.materialize(layer), full.materialize(layer), strict=True)
    )
    if kind(method) == "none":
        assert exact
    if exact:
        assert torch.equal(attended(cache), attended(full))


@methods
def test_the_full_cache_is_left_as_it_is_and_compressing_again_gives_the_same(method: Method) -> None:
    full, cache = compressed(method)
    before, held = state(full), full.nbytes()
    again = make(method).compress(examples.snapshot(method, PROMPT), seed=3)

    assert state(again) == state(cache)
    assert state(full) == before
    assert full.nbytes() == held


@methods
def test_the_seed_matters_to_noise_alone(method: Method) -> None:
    _, cache = compressed(method)
    other = make(method).compress(examples.snapshot(method, PROMPT), seed=4)

    assert (state(other) != state(cache)) == (kind(method) == "noise")


@pytest.mark.acceptance("A-GEN-2")
@methods
def test_attention_is_that_over_the_materialised_entries(method: Method) -> None:
    """A-GEN-2; in what is materialised, position -1 is padding."""
    _, cache = compressed(method)
    append(cache, 40, seed=5)
    cache.commit(40)
    examples.check_attention(cache, rtol=0)


Rounds = list[tuple[int, int, int]]
"""(tokens drafted, tokens committed, seed of the draft's entries); the bonus token may be committed undrafted."""
rounds = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 13), st.integers(0, 5)).map(
        lambda r: (r[0], min(r[1], r[0] + 1), r[2])
    ),
    max_size=8,
)


@pytest.mark.acceptance("A-GEN-6")
@methods
@pytest.mark.parametrize("tokens", [5, 31, 64, PROMPT])
@hypothesis_settings(max_examples=12)
@given(pattern=rounds)
def test_drafting_and_committing_is_committing(method: Method, tokens: int, pattern: Rounds) -> None:
    """A-GEN-6: whatever was drafted and rejected, the cache is that of the verified tokens."""
    full, drafted = compressed(method, tokens)
    _, direct = compressed(method, tokens)
    for number, (length, committed, seed) in enumerate(pattern):
        for i in range(length):
            append(drafted, 1, seed=seed + i)
        append(full, 14, seed=1000 + number)
        drafted.commit(committed, full)
        direct.commit(committed, full)
        full.commit(committed)
        assert drafted.tokens == drafted.committed == full.committed

    assert state(drafted) == state(direct)


@methods
@hypothesis_settings(max_examples=12)
@given(pattern=rounds)
def test_verified_entries_and_written_ones_commit_alike(method: Method, pattern: Rounds) -> None:
    """Decoding from the lossy cache itself and refreshing from a full cache of the same entries do the same."""
    full, verified = compressed(method)
    _, written = compressed(method)
    for number, (_, committed, _) in enumerate(pattern):
        for cache in (full, written):
            append(cache, 14, seed=1000 + number)
        verified.commit(committed, full)
        full.commit(committed)
        written.commit(committed)

    assert state(verified) == state(written)


@methods
@hypothesis_settings(max_examples=12)
@given(before=rounds, lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_a_roll_back_leaves_nothing(method: Method, before: Rounds, lengths: list[int]) -> None:
    _, cache = compressed(method)
    for number, (length, committed, _) in enumerate(before):
        append(cache, length + 1, seed=number)
        cache.commit(committed)
    shown = state(cache)
    for seed, length in enumerate(lengths):
        append(cache, length, seed=seed)
    cache.roll_back()

    assert state(cache) == shown


parts = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=5)
"""(tokens drafted, of all that are there how many are kept, whether with the entries of a better source)."""


@methods
@pytest.mark.parametrize("tokens", [31, PROMPT])
@hypothesis_settings(max_examples=12)
@given(pattern=parts, committed=st.integers(0, 12))
def test_what_is_kept_is_as_if_nothing_else_had_been_drafted(
    method: Method, tokens: int, pattern: list[tuple[int, int, bool]], committed: int
) -> None:
    """A level in the middle keeps the first j of n tokens, again and again; the full cache commits some in the end."""
    (full, cache), (_, plain) = compressed(method, tokens), compressed(method, tokens)
    append(full, 40, seed=77)
    kept: list[int | None] = []
    for number, (drafted, keep, better) in enumerate(pattern):
        seeds = [100 * number + i for i in range(drafted)]
        for seed in seeds:
            append(cache, 1, seed=seed)
        there = [*kept, *seeds]
        keep = min(keep, len(there))
        if better:
            cache.refresh(keep, full)
            kept = [None] * keep
        else:
            cache.roll_back(keep)
            kept = there[:keep]
        assert cache.tokens - cache.committed == keep
    for place, seed in enumerate(kept):
        if seed is None:
            plain.refresh(place + 1, full)
        else:
            append(plain, 1, seed=seed)
    assert state(cache) == state(plain)
    for layer in range(full.shape.n_layers):
        for ours, theirs in zip(cache.uncommitted(layer, len(kept)), plain.uncommitted(layer, len(kept)), strict=True):
            assert as_bytes(ours) == as_bytes(theirs)
    for each in (cache, plain):
        each.commit(min(committed, len(kept)))
    assert state(cache) == state(plain)
    cache.commit(3, full_from(full, cache.committed))
    plain.commit(3, full_from(full, plain.committed))
    assert state(cache) == state(plain)


def full_from(full: FullCache, committed: int) -> FullCache:
    """The same cache as of another commit."""
    full.committed = committed
    return full


@methods
def test_entries_come_back_as_they_were_written(method: Method) -> None:
    """What another level is given of the uncommitted tokens: the entries themselves, up to rounding."""
    full, cache = compressed(method)
    append(full, 9, seed=5)
    append(cache, 9, seed=5)
    for count in (0, 1, 6, 9):
        for layer in range(full.shape.n_layers):
            for ours, theirs in zip(cache.uncommitted(layer, count), full.uncommitted(layer, count), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@methods
def test_more_cannot_be_kept_than_there_is(method: Method) -> None:
    full, cache = compressed(method)
    append(cache, 3, seed=1)
    with pytest.raises(ValueError, match="cannot keep 4 of 3 uncommitted tokens"):
        cache.roll_back(4)
    append(full, 3, seed=1)
    full.commit(1)
    with pytest.raises(ValueError, match="tokens are committed in the source"):
        cache.commit(1, full)


@methods
def test_committing_nothing_changes_nothing(method: Method) -> None:
    full, cache = compressed(method)
    before = state(cache)
    cache.commit(0)
    append(cache, 5, seed=1)
    cache.commit(0)
    append(cache, 5, seed=2)
    cache.commit(0, full)

    assert state(cache) == before


@methods
def test_drafting_compresses_nothing(method: Method) -> None:
    """Entries of before stay as they are however far a draft goes."""
    _, cache = compressed(method)
    before = [[x.clone() for x in cache.materialize(layer)] for layer in range(2)]
    append(cache, 200, seed=1)
    for layer, shown in enumerate(before):
        for now, then in zip(cache.materialize(layer), shown, strict=True):
            assert torch.equal(now[:, : then.shape[1]], then) or -1 in then


@methods
@pytest.mark.parametrize("tokens", [20, 33, 60, PROMPT])
def test_within_the_horizon_one_pass_shows_what_one_by_one_does(method: Method, tokens: int) -> None:
    """What the divergence relies on: as many rows at once as no commit in between would have changed."""
    _, at_once = compressed(method, tokens)
    _, one_by_one = compressed(method, tokens)
    count = min(30, at_once.horizon())
    keys, values = (examples.entries(at_once, count, seed) for seed in (1, 2))
    queries = examples.entries(at_once, count, 3, ARCHITECTURE.n_heads)
    rows = []
    for row in (slice(i, i + 1) for i in range(count)):
        for layer in range(ARCHITECTURE.n_layers):
            one_by_one.write(layer, keys[layer][row], values[layer][row])
            rows.append(attend(one_by_one, layer, queries[layer][row]))
        one_by_one.advance(1)
        one_by_one.commit(1)
    for layer in range(ARCHITECTURE.n_layers):
        at_once.write(layer, keys[layer], values[layer])
        together = attend(at_once, layer, queries[layer])
        assert torch.equal(together, torch.cat(rows[layer :: ARCHITECTURE.n_layers]))


@pytest.mark.acceptance("A-ACC-1")
@methods
@pytest.mark.parametrize("tokens", [1, 33, PROMPT])
def test_bytes_are_those_of_every_tensor_held(method: Method, tokens: int) -> None:
    """A-ACC-1, after the prompt, while drafting, and after commits that compress."""
    full, cache = compressed(method, tokens)
    assert sum(cache.nbytes().values()) == examples.held_bytes(cache)
    for number in range(4):
        append(cache, 70, seed=number)
        assert sum(cache.nbytes().values()) == examples.held_bytes(cache)
        cache.commit(41)
        assert sum(cache.nbytes().values()) == examples.held_bytes(cache)

    assert min(cache.nbytes().values()) >= 0
    assert sum(full.nbytes().values()) == examples.held_bytes(full)


@pytest.mark.acceptance("A-GEN-7")
@methods
def test_a_compressed_cache_is_smaller_than_the_full_one(method: Method) -> None:
    """A-GEN-7: also the guard against a method that was bypassed."""
    full, cache = compressed(method, 400)
    ours, whole = (sum(c.nbytes().values()) for c in (cache, full))

    if kind(method) == "none":
        assert ours >= whole
    else:
        assert ours < whole


@methods
@pytest.mark.parametrize("tokens", [1, 33, PROMPT, 400])
def test_the_estimate_is_right_to_within_a_page(method: Method, tokens: int) -> None:
    """A page for what is exact and a block for what is codes, in every store that the cache has."""
    _, cache = compressed(method, tokens)
    name, options = method
    estimate = examples.lookup("compressor", name).estimate_bytes(options, ARCHITECTURE, tokens, 4)
    page = PAGE_TOKENS * ARCHITECTURE.kv_bytes_per_token(4)

    assert abs(sum(cache.nbytes().values()) - estimate) <= 2 * page


@pytest.mark.acceptance("A-DROP-5")
@methods
def test_heads_of_a_layer_keep_different_positions_but_equally_many(method: Method) -> None:
    """A-DROP-5, and no position twice; what has been generated is all there."""
    _, cache = compressed(method)
    append(cache, 9, seed=1)
    cache.commit(9)
    for layer in range(ARCHITECTURE.n_layers):
        _, _, positions = cache.materialize(layer)
        held = [row[row >= 0].tolist() for row in positions]
        assert len({len(row) for row in held}) == 1
        for row in held:
            assert len(set(row)) == len(row)
            assert set(range(PROMPT, PROMPT + 9)) <= set(row)
            assert max(row) == PROMPT + 8


DROPPING = {
    name: method
    for name, method in METHODS.items()
    if kind(method) in ("drop", "none") and getattr(method[1], "positions", "original") == "original"
}
"""Keys of re-indexed positions are turned anew; `tests/engine/kv/test_reindexed.py` holds them against the text."""


@pytest.mark.parametrize("method", DROPPING.values(), ids=DROPPING)
def test_kept_entries_are_those_of_their_positions(method: Method) -> None:
    full, cache = compressed(method)
    for layer in range(ARCHITECTURE.n_layers):
        expected_k, expected_v, _ = full.materialize(layer)
        for head, (k, v, positions) in enumerate(zip(*cache.materialize(layer), strict=True)):
            real = positions >= 0
            assert torch.equal(k[real], expected_k[head, positions[real]])
            assert torch.equal(v[real], expected_v[head, positions[real]])


@pytest.mark.acceptance("A-GEN-4")
@methods
def test_chunked_prefill_gives_the_same_cache(method: Method) -> None:
    """A-GEN-4: the same positions, the same entries but for what rounding does to a prefill."""
    ids, compressor = tiny.token_ids(PROMPT), make(method)
    caches = [compressor.compress(examples.prefill(ids, compressor, chunk=chunk), seed=3) for chunk in (PROMPT, 7, 64)]
    for layer in range(ARCHITECTURE.n_layers):
        k, v, positions = caches[0].materialize(layer)
        for other in caches[1:]:
            other_k, other_v, other_positions = other.materialize(layer)
            assert torch.equal(other_positions, positions)
            for ours, theirs in ((k, other_k), (v, other_v)):
                # A value at the border of two codes may fall to either side, nothing more.
                moved = (ours - theirs).abs() > 1e-4
                assert not moved.any() or (kind(method) == "quantise" and moved.float().mean() < 1e-3)


@methods
def test_estimates_grow_with_the_prompt(method: Method) -> None:
    name, options = method
    cls = examples.lookup("compressor", name)
    sizes = [cls.estimate_bytes(options, ARCHITECTURE, tokens, 2) for tokens in (1, 100, 10_000, 100_000)]

    assert sizes == sorted(sizes)
    assert sizes[0] > 0


SCORING = {
    name: method
    for name, method in METHODS.items()
    if isinstance(make(method), DroppingCompressor) and kind(method) != "none"
}


@pytest.mark.parametrize("method", SCORING.values(), ids=SCORING)
@pytest.mark.parametrize("tokens", [23, 64, PROMPT])
def test_scores_are_one_for_each_layer_head_and_token(method: Method, tokens: int) -> None:
    """Also where the budget holds the whole prompt, so that `compress` does not look at them."""
    snapshot, compressor = examples.snapshot(method, tokens), make(method)
    assert isinstance(compressor, DroppingCompressor)
    snapshot.cache.rewind(tokens)
    found = [scores.clone() for scores in compressor.checked_scores(snapshot)]

    assert len(found) == ARCHITECTURE.n_layers
    for layer, scores in enumerate(found):
        assert scores.shape == (ARCHITECTURE.n_kv_heads, tokens)
        assert torch.equal(compressor.scores(snapshot, layer), scores)


def test_pages_are_the_store_under_test() -> None:
    """These are the tests of the CPU's float32 caches; TensorStore is tried in the engine's tests."""
    full, _ = compressed(("none", examples.example_options("none")[0]))

    assert isinstance(full.store, PagedStore)


@methods
@pytest.mark.parametrize("tokens", [1, 63, PROMPT])
def test_a_copy_is_the_same_cache_and_another_one(method: Method, tokens: int) -> None:
    """Bit for bit where both go on; and what becomes of one never shows in the other."""
    full, cache = compressed(method, tokens)
    attended(cache)  # a cache that has been read may hold addresses
    before, held = state(cache), examples.held_bytes(cache)
    twin = cache.fork()

    assert twin is not None, "the draft caches of vcbench's own methods can be copied"
    assert type(twin) is type(cache)
    assert (state(twin), examples.held_bytes(twin), twin.nbytes()) == (before, held, cache.nbytes())
    for round_ in range(3):
        append(twin, 40, seed=round_)
        twin.commit(33)
    assert state(cache) == before
    later = state(twin)
    for round_ in range(3):
        append(cache, 40, seed=round_)
        cache.commit(33)
    assert state(cache) == state(twin) == later
    assert full.tokens == full.committed == tokens


def test_a_cache_that_does_not_say_it_can_be_copied_is_not() -> None:
    """Addresses that a package of its own keeps in its cache would be those of the other."""

    class Own(KVCache):
        write = attend = materialize = nbytes = None  # type: ignore[assignment]

    Own.__abstractmethods__ = frozenset()
    assert Own(examples.snapshot(METHODS["none"], 1).cache.shape).fork() is None
