"""Cells end to end on a small model: VeriCache gives full KV's output bit for bit, whatever drafts or fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compressors.examples import as_bytes, full_copy, make, state
from tests.engine import tiny
from tests.engine.cells import METHODS, batch, check_same, decode, full_outputs, prefilled, request
from vcbench.engine.decoding import session as cells
from vcbench.engine.decoding.rounds import run_round
from vcbench.engine.decoding.stopping import check_request
from vcbench.engine.model.decoder import Block
from vcbench.engine.types import BatchTiming, Generation
from vcbench.errors import RequestError

DRAFT_LENGTHS = (1, 3, 8, 40)
Method = tuple[str, Any]
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@methods
@pytest.mark.parametrize("name", ["one", "ragged"])
@pytest.mark.parametrize("draft_length", DRAFT_LENGTHS)
def test_vericache_gives_the_output_of_full_kv(method: Method, name: str, draft_length: int) -> None:
    """A-GEN-3 and A-GEN-5: for every method and draft length, in a ragged batch as alone, logits included."""
    items = batch(name, tiny.decoder())
    before = [state(item.prefill.cache) for item in items]
    ours = decode(items, "vericache", make(method), draft_length)
    for done, full in zip(ours, full_outputs(name, tiny.decoder()), strict=True):
        check_same(done, full)
        assert done.cache_classes == {make(method).cache_class.__name__: tiny.ARCHITECTURE.n_layers}
        if make(method).kind == "none":
            assert all(each.accepted == each.drafted for each in done.rounds)

    assert [state(item.prefill.cache) for item in items] == before


@methods
def test_vericache_gives_the_output_of_full_kv_in_bfloat16(method: Method) -> None:
    """The torch back-end, as on an accelerator."""
    check_in_half(method, torch.bfloat16)


@pytest.mark.parametrize("name", ["none", "kivi", "streamingllm"])
def test_vericache_gives_the_output_of_full_kv_in_float16(name: str) -> None:
    check_in_half(METHODS[name], torch.float16)


def check_in_half(method: Method, dtype: torch.dtype) -> None:
    decoder = tiny.decoder(tiny.ARCHITECTURE, dtype)
    ours = decode(batch("short", decoder), "vericache", make(method), 5, decoder=decoder)
    for done, full in zip(ours, full_outputs("short", decoder), strict=True):
        check_same(done, full)
        if make(method).kind == "none":
            assert all(each.accepted == each.drafted for each in done.rounds)


def test_the_drafts_are_worth_testing() -> None:
    """Some are accepted and some are not; noise is accepted least."""
    shares = {}
    for name, method in METHODS.items():
        done = decode(batch("ragged", tiny.decoder()), "vericache", make(method), 8)
        rounds = [each for generation in done for each in generation.rounds]
        shares[name] = sum(each.accepted for each in rounds) / sum(each.drafted for each in rounds)

    assert shares.pop("none") == 1
    assert shares["random"] < 0.2
    assert shares["int8"] > 0.9
    assert 0.1 < sum(shares.values()) / len(shares) < 0.9


@pytest.mark.parametrize("name", ["one", "ragged"])
def test_a_batch_decodes_as_each_of_its_requests_alone(name: str) -> None:
    together = decode(batch(name, tiny.decoder()))
    for ours, alone in zip(together, full_outputs(name, tiny.decoder()), strict=True):
        assert ours.token_ids == alone.token_ids
        assert ours.logits_sha256 == alone.logits_sha256


@methods
def test_lossy_decoding_is_deterministic_and_really_lossy(method: Method) -> None:
    items = batch("ragged", tiny.decoder())
    first, again = (decode(items, "lossy", make(method)) for _ in range(2))

    assert [done.logits_sha256 for done in again] == [done.logits_sha256 for done in first]
    full = full_outputs("ragged", tiny.decoder())
    same = all(done.logits_sha256 == reference.logits_sha256 for done, reference in zip(first, full, strict=True))
    assert same == (make(method).kind == "none")


def reference_entries(ids: Sequence[int], output: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer of a run that never drafted: one token at a time after the prefill."""
    decoder = tiny.decoder()
    cache = decoder.prefill(ids, chunk=64).cache
    for token in output:
        decoder.forward([Block(cache, [token])])
        cache.commit(1)
    return [cache.materialize(layer)[:2] for layer in range(tiny.ARCHITECTURE.n_layers)]


@methods
def test_after_each_round_the_full_cache_is_that_of_a_run_that_never_drafted(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = batch("ragged", tiny.decoder())
    outputs = {item.request.id: done for item, done in zip(items, full_outputs("ragged", tiny.decoder()), strict=True)}
    expected = {i.request.id: reference_entries(i.request.prompt_ids, outputs[i.request.id].token_ids) for i in items}
    rounds = []

    def watched(drafter: Any, verifier: Any, active: Any, *rest: Any) -> None:
        run_round(drafter, verifier, active, *rest)
        rounds.append(len(active))
        for progress in active:
            key = progress.request.id
            cache, draft = verifier.caches[key], drafter.caches[key]
            tokens = len(progress.request.prompt_ids) + len(progress.token_ids) - 1
            assert cache.tokens == cache.committed == draft.tokens == draft.committed == tokens
            for layer, kept in enumerate(expected[key]):
                for ours, theirs in zip(cache.materialize(layer)[:2], kept, strict=True):
                    assert as_bytes(ours) == as_bytes(theirs[:, :tokens])

    monkeypatch.setattr(cells, "run_round", watched)
    decode(items, "vericache", make(method), 5)

    assert len(rounds) > 1


@methods
@pytest.mark.parametrize("arm", ["lossy", "vericache"])
def test_bytes_are_reported_as_held(method: Method, arm: Any) -> None:
    (item,) = batch("one", tiny.decoder())
    (done,) = decode([item], arm, make(method), 4)
    start, end = done.kv_start, done.kv_end
    assert start is not None
    assert end is not None
    prompt, per_token = len(item.request.prompt_ids), item.prefill.cache.shape.token_bytes()

    assert start.full == prompt * per_token
    assert end.full == (prompt + len(done.token_ids) - 1) * per_token
    assert start.stored == sum(make(method).compress(item.prefill, seed=0).nbytes().values())
    for held in (start, end):
        assert sum(held.parts.values()) == held.stored
        assert 0 < held.codes <= held.stored
        beside = sum(full_copy(item.prefill.cache).nbytes().values())
        assert held.resident - held.stored >= (beside if arm == "vericache" else 0)
        assert arm == "vericache" or held.resident == held.stored


def test_full_kv_reports_its_own_cache() -> None:
    (done,) = decode(batch("one", tiny.decoder()))

    assert done.cache_classes == {"FullCache": 2}
    assert done.kv_start is not None
    assert done.kv_start.resident == done.kv_start.stored == done.kv_start.parts["kv"]


@pytest.mark.parametrize("stop", range(0, 12, 2))
def test_a_stop_id_ends_every_arm_alike(stop: int) -> None:
    ids = tiny.token_ids(30, seed=3)
    (free,) = decode([prefilled(request(ids))])
    token = free.token_ids[stop]
    item = prefilled(request(ids, stop_ids=frozenset({token})))
    (full,) = decode([item])
    (ours,) = decode([item], "vericache", make(METHODS["kivi"]), 5)

    check_same(ours, full)
    assert full.token_ids == free.token_ids[: free.token_ids.index(token) + 1]
    assert full.finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", range(1, 11))
@pytest.mark.parametrize("name", ["none", "snapkv"])
def test_the_cap_is_kept(name: str, max_tokens: int) -> None:
    item = prefilled(request(tiny.token_ids(30, seed=3), max_tokens=max_tokens))
    (ours,) = decode([item], "vericache", make(METHODS[name]), 4)

    check_same(ours, decode([item])[0])
    assert len(ours.token_ids) == max_tokens
    assert ours.finish_reason == "length"


@pytest.mark.parametrize("ids", [(5,), (0,), (0, 0), (0, 1, 2), (100,)], ids=str)
@methods
def test_prompts_of_one_token_or_of_special_tokens_alone(method: Method, ids: tuple[int, ...]) -> None:
    """Stop ids in the prompt end nothing."""
    item = prefilled(request(ids, max_tokens=8, stop_ids=frozenset({0, 1, 2})))
    (full,) = decode([item])
    (ours,) = decode([item], "vericache", make(method), 3)
    (lossy,) = decode([item], "lossy", make(method))

    check_same(ours, full)
    assert full.error is None
    assert lossy.error is None


LIMIT = 64


@pytest.mark.parametrize("prompt", [1, 30, 63])
@pytest.mark.parametrize("draft_length", [3, 40])
def test_the_context_limit_can_be_reached_and_is_never_passed(prompt: int, draft_length: int) -> None:
    """Prompt + output = limit, though prompt + output + draft would be more."""
    decoder = tiny.fresh_decoder(replace(tiny.ARCHITECTURE, max_context=LIMIT))
    wanted = request(tiny.token_ids(prompt), max_tokens=LIMIT - prompt)
    check_request(wanted, vocab_size=101, max_context=LIMIT)
    item = prefilled(wanted, decoder)
    reach, forward = [prompt], decoder.forward

    def watched(blocks: Sequence[Block]) -> Tensor:
        reach.extend(block.cache.tokens + len(block.token_ids) for block in blocks)
        return forward(blocks)

    decoder.forward = watched
    (full,) = decode([item], decoder=decoder)
    (ours,) = decode([item], "vericache", make(METHODS["none"]), draft_length, decoder=decoder)

    check_same(ours, full)
    assert prompt + len(full.token_ids) == LIMIT
    assert max(reach) == LIMIT - 1


def test_a_request_beyond_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(RequestError, match=r"30 prompt tokens \+ max_tokens 35 = 65 exceed the context limit of 64"):
        check_request(request(tiny.token_ids(30), max_tokens=35), vocab_size=101, max_context=LIMIT)


def test_a_sentinel_answers_alike_before_and_after_everything_else() -> None:
    """Case 25: method A, B, A on one snapshot; a long request, a failed one and every method in between."""
    sentinel = prefilled(request(tiny.token_ids(40, seed=9)))
    before = decode([sentinel], "vericache", make(METHODS["kivi"]), 6)[0]
    lossy_before = decode([sentinel], "lossy", make(METHODS["kivi"]))[0]
    long = prefilled(request(tiny.token_ids(300, seed=8), max_tokens=12))
    failing = prefilled(request(tiny.token_ids(20), "bad"))
    failing.prefill.first_logits[0] = float("inf")
    for method in METHODS.values():
        decode([long, failing], "vericache", make(method), 7)
        decode([sentinel], "lossy", make(method))
        decode([sentinel], "vericache", make(method), 3)
    after = decode([sentinel], "vericache", make(METHODS["kivi"]), 6)[0]
    lossy_after = decode([sentinel], "lossy", make(METHODS["kivi"]))[0]

    for now, then in ((after, before), (lossy_after, lossy_before)):
        assert now.token_ids == then.token_ids
        assert now.logits_sha256 == then.logits_sha256
        assert now.rounds == then.rounds
        assert now.kv_start == then.kv_start
        assert now.kv_end == then.kv_end


def test_one_compressor_object_serves_request_after_request() -> None:
    """A method keeps nothing of a request."""
    short, long = (prefilled(request(tiny.token_ids(n, seed=n))) for n in (30, 130))
    for method in METHODS.values():
        shared = make(method)
        first = decode([short], "lossy", shared)[0]
        decode([long], "lossy", shared)
        assert decode([short], "lossy", shared)[0].logits_sha256 == first.logits_sha256
        assert decode([short], "lossy", make(method))[0].logits_sha256 == first.logits_sha256


def test_times_and_steps_are_counted() -> None:
    ended: list[Generation] = []
    setup = cells.CellSetup(arm="vericache", compressor=make(METHODS["none"]), draft_length=4)
    timing = cells.run_cell(tiny.decoder(), setup, batch("one", tiny.decoder()), on_end=ended.append)

    assert isinstance(timing, BatchTiming)
    assert timing.steps == len(ended[0].rounds)
    assert 0 < timing.draft_s + timing.verify_s <= timing.decode_s
    assert ended[0].decode_s <= timing.decode_s


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (5, 1), (40, 8)])
@pytest.mark.parametrize("head_dim", [20, 32])
def test_head_counts_and_sizes_with_ragged_batches(heads: int, kv_heads: int, head_dim: int) -> None:
    """Case 7: groups of query heads, head sizes that are no power of two, several requests; unsupported is said."""
    architecture = replace(tiny.ARCHITECTURE, n_heads=heads, n_kv_heads=kv_heads, head_dim=head_dim)
    decoder = tiny.fresh_decoder(architecture)
    items = [prefilled(request(tiny.token_ids(n, seed=n), str(n), 10), decoder) for n in (1, 40, 70)]
    full = [decode([item], decoder=decoder)[0] for item in items]
    for name in ("none", "snapkv", "streamingllm", "int8", "kivi"):
        compressor = make(METHODS[name])
        if (reason := compressor.unsupported(compressor.options, architecture)) is not None:
            assert (name, head_dim) == ("kivi", 20), reason
            continue
        for done, alone in zip(decode(items, "vericache", compressor, 5, decoder=decoder), full, strict=True):
            check_same(done, alone)
        together = decode(items, "lossy", compressor, decoder=decoder)
        for done, item in zip(together, items, strict=True):
            assert done.logits_sha256 == decode([item], "lossy", compressor, decoder=decoder)[0].logits_sha256
