"""Every registered method that drops entries: budgets, ties, heads, chunks, and full KV where nothing is dropped."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compressors import tiny
from tests.compressors.examples import ARCHITECTURE, attended
from tests.compressors.shapes import METHODS, Method
from tests.engine.cells import check_same, decode, request
from vcbench.calibration.base import Calibration
from vcbench.calibration.store import make_calibration
from vcbench.compressors.base import Compressor, prefill_for
from vcbench.engine.decoding.session import Prefilled
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.engine.model.load import load_decoder
from vcbench.registry import lookup

BUDGET = 40
DROPPING = {label: method for label, method in METHODS.items() if lookup("compressor", method[0]).kind == "drop"}
methods = pytest.mark.parametrize("method", DROPPING.values(), ids=DROPPING)
SLIDING = ("streamingllm",)
"""Keep by position alone, whatever the scores and heads are."""
SHARED = ("tova", *SLIDING)
"""Keep the same positions in all heads of a layer."""
ORDER = torch.tensor([1, 0])


def with_budget(method: Method, tokens: int, of: int) -> Method:
    """The method keeping `tokens` of a prompt of `of` tokens in each layer and head, or on average over them."""
    name, options = method
    if "budget_tokens" in {each.name for each in fields(options)}:
        return name, replace(options, budget_tokens=tokens)
    return name, replace(options, keep=min(1.0, tokens / of), factor=None)


class ChangedWeights(tiny.RandomWeights):
    """The small model's weights without attention's inputs, or with the KV heads in another order."""

    def __init__(self, *, zero: bool, swapped: bool) -> None:
        super().__init__(ARCHITECTURE, zero_queries=False)
        self.zero, self.swapped = zero, swapped

    def tensor(self, name: str) -> Tensor:
        weight = super().tensor(name)
        kind = name.split(".")[-2]
        if kind not in ("q_proj", "k_proj", "v_proj", "o_proj"):
            return weight
        if self.zero and kind != "o_proj":
            return torch.zeros_like(weight)
        if not self.swapped:
            return weight
        heads = (weight.mT if kind == "o_proj" else weight).unflatten(0, (ARCHITECTURE.n_kv_heads, -1))
        moved = heads[ORDER].flatten(0, 1)
        return (moved.mT if kind == "o_proj" else moved).contiguous()


@cache
def model(*, zero: bool = False, swapped: bool = False) -> Decoder:
    """The small model with changed weights."""
    weights = ChangedWeights(zero=zero, swapped=swapped)
    made, _ = load_decoder(
        ARCHITECTURE, weights, device=torch.device("cpu"), dtype=torch.float32, exactness="bitwise"
    )  # fmt: skip
    return made


@cache
def calibration(name: str, options: Any, decoder: Decoder) -> Calibration:
    """A fit on random tokens; for the model with its heads in another order the same fit, its heads reordered.

    Fitted on that model, an MLP would start from other random weights for each head.
    """
    samples = [tiny.token_ids(64, seed=seed) for seed in range(100, 102)]
    moved = decoder is model(swapped=True)
    tensors = lookup("compressor", name).calibrate(options, model() if moved else decoder, samples).tensors
    if moved:
        heads = ARCHITECTURE.n_kv_heads
        tensors = {key: x[:, ORDER].contiguous() if x.shape[1] == heads else x for key, x in tensors.items()}
    return make_calibration(tensors, {"method": name})


def compressed(method: Method, decoder: Decoder, tokens: int, chunk: int = 64) -> tuple[Prefill, KVCache]:
    """A random prompt and the method's draft cache of it."""
    name, options = method
    cls = lookup("compressor", name)
    given = () if cls.calibration_need(options) is None else (calibration(name, options, decoder),)
    compressor: Compressor[Any] = cls(options, *given)
    prefill = prefill_for([compressor], decoder, tiny.token_ids(tokens), chunk=chunk)
    return prefill, compressor.compress(prefill, seed=0)


def held(cache: KVCache) -> list[list[list[int]]]:
    """Positions by layer and head, ascending."""
    layers = [cache.materialize(layer)[2] for layer in range(ARCHITECTURE.n_layers)]
    return [[sorted(p for p in head if p >= 0) for head in layer.tolist()] for layer in layers]


@methods
@pytest.mark.parametrize("tokens", [1, 33, 70])
def test_a_method_that_keeps_everything_is_full_kv(method: Method, tokens: int) -> None:
    """A-GEN-1 and A-SNAP-1: the same attention bit for bit, and every draft is accepted."""
    whole, decoder = with_budget(method, 200, tokens), model()
    prefill, cache = compressed(whole, decoder, tokens)
    assert held(cache) == [[list(range(tokens))] * ARCHITECTURE.n_kv_heads] * ARCHITECTURE.n_layers
    assert torch.equal(attended(cache), attended(prefill.cache))

    name, options = whole
    given = (
        () if lookup("compressor", name).calibration_need(options) is None else (calibration(name, options, decoder),)
    )
    item = Prefilled(request(tiny.token_ids(tokens), max_tokens=20), prefill)
    (full,) = decode([item], decoder=decoder)
    (ours,) = decode([item], "vericache", lookup("compressor", name)(options, *given), 5, decoder=decoder)
    check_same(ours, full)
    assert [each.accepted for each in ours.rounds] == [each.drafted for each in ours.rounds]
    assert sum(each.drafted for each in ours.rounds) > 0


@methods
def test_ties_keep_exactly_the_budget(method: Method) -> None:
    """A-DROP-3: without attention's inputs every token looks the same, for any score."""
    tokens = 96
    _, cache = compressed(with_budget(method, BUDGET, tokens), model(zero=True), tokens)
    kept = [len(head) for layer in held(cache) for head in layer]

    assert sum(kept) == BUDGET * len(kept)


@methods
def test_heads_in_another_order_keep_what_they_kept(method: Method) -> None:
    """A-DROP-4: no head's scores reach another's, but for TOVA, which says so."""
    tokens = 96
    chosen = with_budget(method, BUDGET, tokens)
    ours, theirs = (held(compressed(chosen, model(swapped=swapped), tokens)[1]) for swapped in (False, True))

    assert theirs == [[layer[head] for head in ORDER] for layer in ours]
    assert any(layer[0] != layer[1] for layer in ours) == (method[0] not in SHARED)


@methods
@pytest.mark.parametrize("tokens", [1, BUDGET - 1, BUDGET, BUDGET + 1, 4 * BUDGET, 4 * BUDGET + 31])
def test_the_budget_holds_at_every_length_and_chunk(method: Method, tokens: int) -> None:
    """Case 6: kept entries stay within the budget however the prompt was cut, and short prompts are kept whole."""
    chosen, decoder = with_budget(method, BUDGET, tokens), model()
    first = None
    for chunk in (tokens, 1, 32, BUDGET, BUDGET + 1):
        prefill, cache = compressed(chosen, decoder, tokens, chunk)
        kept = held(cache)
        first = first or kept
        assert kept == first
        assert cache.tokens == tokens
        count, most = sum(len(head) for layer in kept for head in layer), 4 * min(tokens, BUDGET)
        # PyramidKV's first layers want more than a prompt has that is hardly longer than the budget.
        assert count <= most if method[0] == "pyramidkv" and tokens == BUDGET + 1 else count == most
        if tokens <= BUDGET:
            assert torch.equal(attended(cache), attended(prefill.cache))


@pytest.mark.parametrize("tokens", [1, 31, 33, 4 * BUDGET + 31])
def test_without_compression_no_length_and_no_chunk_matters(tokens: int) -> None:
    """Case 6, the control: logits after the prompt, in float64's reach of one another."""
    ids = tiny.token_ids(tokens)
    logits = [model().prefill(ids, chunk=chunk).first_logits for chunk in (tokens, 1, 32, BUDGET + 1)]

    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-4, atol=1e-4)
