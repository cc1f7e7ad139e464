"""Faults put in on purpose: NaN in drafts and in verification, wrong positions, a cache that is not the method's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compressors.examples import full_copy, make
from tests.engine import tiny
from tests.engine.cells import METHODS, batch, check_same, decode, full_outputs, prefilled, request
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.model.mlp import FeedForward
from vcbench.engine.types import Generation

Method = tuple[str, Any]
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


class PoisonedMLP(FeedForward):
    """A layer's feed-forward part that gives NaN for the marked rows of a forward pass."""

    def __init__(self, mlp: FeedForward) -> None:
        self.mlp = mlp
        self.marked: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.mlp(x)
        return y if self.marked is None else y.masked_fill(self.marked[:, None], float("nan"))

    def linears(self) -> list[Any]:
        return self.mlp.linears()


def poisoned(layer: int, token: int, hits: Callable[[KVCache], bool]) -> Decoder:
    """A decoder in which a token makes the output of a layer NaN, in the caches that `hits` names."""
    decoder = tiny.fresh_decoder()
    mlp = PoisonedMLP(decoder.weights.layers[layer].mlp)
    decoder.weights.layers[layer].mlp = mlp
    forward = decoder.forward

    def marking(blocks: Sequence[Block]) -> Tensor:
        mlp.marked = torch.tensor([t == token and hits(block.cache) for block in blocks for t in block.token_ids])
        try:
            return forward(blocks)
        finally:
            mlp.marked = None

    decoder.forward = marking
    return decoder


def output_of(prompt: int) -> tuple[tuple[int, ...], list[int]]:
    ids = tiny.token_ids(prompt, seed=prompt)
    return ids, decode([prefilled(request(ids))])[0].token_ids


@pytest.mark.parametrize("draft_length", [1, 4, 40])
@methods
def test_nan_in_drafts_alone_changes_nothing(method: Method, draft_length: int) -> None:
    ids, output = output_of(37)
    token = max(set(output), key=output.count)
    decoder = poisoned(0, token, lambda cache: not isinstance(cache, FullCache))
    item = prefilled(request(ids), decoder)
    (ours,) = decode([item], "vericache", make(method), draft_length, decoder=decoder)

    check_same(ours, decode([item], decoder=decoder)[0])
    assert ours.token_ids == output
    assert ours.error is None
    if make(method).kind == "none" and draft_length == 40:
        assert len(ours.rounds) > 1


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("draft_length", [1, 4, 40])
@pytest.mark.parametrize("name", ["none", "snapkv", "streamingllm", "kivi"])
def test_nan_in_verification_fails_its_request_alone_with_step_and_layer(
    name: str, draft_length: int, layer: int
) -> None:
    """With the tokens that full KV decoded before it failed in the same way; the rest of the batch goes on."""
    items = batch("ragged", tiny.decoder())
    outputs = [done.token_ids for done in full_outputs("ragged", tiny.decoder())]
    step = next(i for i in range(8, 26) if outputs[1][i] not in [*outputs[0], *outputs[2], *outputs[1][:i]])
    decoder = poisoned(layer, outputs[1][step], lambda cache: isinstance(cache, FullCache))
    own = [prefilled(item.request, decoder) for item in items]
    full = decode(own, decoder=decoder)
    ours = decode(own, "vericache", make(METHODS[name]), draft_length, decoder=decoder)

    for done, reference in zip(ours, full, strict=True):
        check_same(done, reference)
    assert ours[1].finish_reason == "error"
    assert ours[1].error == f"logits are not finite at step {step + 1}, first in layer {layer}"
    assert ours[1].token_ids == outputs[1][: step + 1]
    assert [done.token_ids for done in (ours[0], ours[2])] == [outputs[0], outputs[2]]


def test_nan_in_a_lossy_cache_fails_the_request() -> None:
    ids, output = output_of(37)
    decoder = poisoned(1, output[0], lambda cache: True)
    (done,) = decode([prefilled(request(ids), decoder)], "lossy", make(METHODS["snapkv"]), decoder=decoder)

    assert done.error == "logits are not finite at step 1, first in layer 1"
    assert done.token_ids == output[:1]


def test_nan_in_the_prefill_fails_the_request_in_every_arm() -> None:
    """Without a round, and without harm to the other request."""
    decoder = tiny.decoder()
    good, bad = prefilled(request(tiny.token_ids(9), "good")), prefilled(request(tiny.token_ids(20), "bad"))
    bad.prefill.first_logits[3] = float("nan")
    for arm, compressor in (("full", None), ("lossy", make(METHODS["kivi"])), ("vericache", make(METHODS["kivi"]))):
        fine, failed = decode([good, bad], arm, compressor, 4, decoder=decoder)
        assert failed.finish_reason == "error"
        assert failed.error == "logits are not finite at step 0, in the prefill"
        assert failed.token_ids == failed.rounds == []
        assert fine.error is None


class Replaced:
    """A method whose cache is silently replaced by an ordinary one."""

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        return full_copy(prefill.cache)


@pytest.mark.parametrize("arm", ["lossy", "vericache"])
@pytest.mark.parametrize("name", ["one", "ragged"])
def test_a_silently_replaced_cache_is_seen(name: str, arm: Any) -> None:
    """Case 26: the record names the class that was decoded from, and the bytes are those of the full cache."""
    for done in decode(batch(name, tiny.decoder()), arm, Replaced(), 4):
        assert done.cache_classes == {"FullCache": 2}
        assert done.kv_start is not None
        assert done.kv_start.stored >= done.kv_start.full


def test_a_position_taken_from_the_kept_length_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 9: the fault changes what a lossy cache says, and acceptance falls; verified output stays as it was."""
    item = prefilled(request(tiny.token_ids(130, seed=5), max_tokens=60))
    sparse = SparseKeeping()
    (right,) = decode([item], "vericache", sparse, 6)
    (lossy,) = decode([item], "lossy", sparse)
    embed = Decoder._embed

    def from_kept_length(self: Decoder, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        x, positions = embed(self, blocks)
        shifts = [
            block.cache.prompt - block.cache.kept if isinstance(block.cache, KeptCache) else 0
            for block in blocks
            for _ in block.token_ids
        ]
        return x, positions - torch.tensor(shifts)

    monkeypatch.setattr(Decoder, "_embed", from_kept_length)
    (wrong,) = decode([item], "vericache", sparse, 6)
    (wrong_lossy,) = decode([item], "lossy", sparse)

    check_same(wrong, right)
    assert wrong_lossy.logits_sha256 != lossy.logits_sha256
    assert accepted_share(wrong) < 0.5 * accepted_share(right)


class SparseKeeping:
    """Keeps nine tenths of a prompt."""

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        cache = prefill.cache
        shape, tokens = cache.shape, cache.tokens
        kept = torch.arange(tokens)[torch.arange(tokens) % 10 != 3]
        return KeptCache.gather(cache, kept.expand(shape.n_layers, shape.n_kv_heads, -1))


def accepted_share(done: Generation) -> float:
    return sum(each.accepted for each in done.rounds) / sum(each.drafted for each in done.rounds)


def test_a_position_fault_in_verification_alone_changes_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 9, the batched verify path off by what a block holds: bitwise comparison must see it."""
    item = prefilled(request(tiny.token_ids(60, seed=5), max_tokens=60))
    (full,) = decode([item])
    embed = Decoder._embed

    def off_by_one_in_wide_blocks(self: Decoder, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        x, positions = embed(self, blocks)
        shifts = [i > 0 for block in blocks for i in range(len(block.token_ids))]
        return x, positions + torch.tensor(shifts).long()

    monkeypatch.setattr(Decoder, "_embed", off_by_one_in_wide_blocks)
    (wrong,) = decode([item], "vericache", make(METHODS["none"]), 6)

    assert wrong.logits_sha256 != full.logits_sha256
