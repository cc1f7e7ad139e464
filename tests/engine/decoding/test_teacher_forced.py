"""KL along full KV's output: the rows of every cache are those of decoding step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.compressors.examples import make, state
from tests.engine import tiny
from tests.engine.cells import METHODS, batch, decode, full_outputs, prefilled, request
from vcbench.engine.decoding.session import Prefilled, seed_of
from vcbench.engine.decoding.teacher_forced import REFERENCE_ROWS, Divergence, measure_divergence
from vcbench.engine.model.decoder import Block

Method = tuple[str, Any]
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def measured(method: Method, items: tuple[Prefilled, ...], outputs: dict[str, list[int]]) -> dict[str, Divergence]:
    return measure_divergence(tiny.decoder(), make(method), items, outputs, seed=11)


def ragged() -> tuple[tuple[Prefilled, ...], dict[str, list[int]]]:
    """Three requests and outputs of unequal lengths, one of a single token."""
    items = batch("ragged", tiny.decoder())
    lengths = (1, 9, 26)
    full = full_outputs("ragged", tiny.decoder())
    return items, {item.request.id: done.token_ids[:n] for item, done, n in zip(items, full, lengths, strict=True)}


def step_by_step(method: Method, item: Prefilled, output: list[int]) -> Divergence:
    """The same from one-row passes, each committed before the next."""
    full = item.prefill.cache
    draft = make(method).compress(item.prefill, seed=seed_of(11, item.request.id))
    rows: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for token in output[:-1]:
        for cache, logits in zip((full, draft), rows, strict=True):
            logits.append(tiny.decoder().forward([Block(cache, [token])]))
            cache.commit(1)
    full.rewind(len(item.request.prompt_ids))
    if not rows[0]:
        return Divergence()
    reference, lossy = (torch.cat(logits).numpy() for logits in rows)
    found = Divergence()
    found.add(reference, lossy, output[1:])
    return found


@methods
def test_it_equals_step_by_step_decoding(method: Method) -> None:
    """Bit for bit, also where a method has to compress in between, and in the ragged batch as alone."""
    items, outputs = ragged()
    before = [state(item.prefill.cache) for item in items]
    found = measured(method, items, outputs)
    for item in items:
        key = item.request.id
        assert found[key] == step_by_step(method, item, outputs[key])
        lengths = {len(getattr(found[key], name)) for name in Divergence.__slots__ if name != "basis"}
        assert lengths == {len(outputs[key]) - 1}

    assert [state(item.prefill.cache) for item in items] == before


@pytest.mark.parametrize("name", ["none", "kivi", "streamingllm", "int8"])
def test_outputs_longer_than_the_rows_held_at_a_time(name: str) -> None:
    item = prefilled(request(tiny.token_ids(20, seed=4), max_tokens=2 * REFERENCE_ROWS + 5))
    (full,) = decode([item])
    found = measured(METHODS[name], (item,), {"r": full.token_ids})["r"]

    assert len(found.kl) == 2 * REFERENCE_ROWS + 4
    assert found == step_by_step(METHODS[name], item, full.token_ids)


@methods
def test_it_is_zero_for_no_compression_alone(method: Method) -> None:
    items, outputs = ragged()
    kl = measured(method, items, outputs)["130"].kl

    assert all(value is not None and value >= 0 for value in kl)
    assert (max(kl) == 0) == (make(method).kind == "none")


@methods
def test_the_first_disagreement_is_where_lossy_decoding_goes_another_way(method: Method) -> None:
    """Up to there both have seen the same tokens."""
    items = batch("ragged", tiny.decoder())
    full = full_outputs("ragged", tiny.decoder())
    found = measured(method, items, {done.request_id: done.token_ids for done in full})
    for ours, reference in zip(decode(items, "lossy", make(method)), full, strict=True):
        agree = found[reference.request_id].top1_agree
        same = [a == b for a, b in zip(ours.token_ids, reference.token_ids, strict=True)]
        assert same[0]
        first = same.index(False) if False in same else len(same)
        assert agree[: first - 1] == [True] * (first - 1)
        assert first == len(same) or not agree[first - 1]


def test_noise_is_further_from_full_kv_than_codes_are() -> None:
    items, outputs = ragged()
    means = {name: np.mean(measured(METHODS[name], items, outputs)["130"].kl) for name in ("random", "kivi", "int8")}

    assert means["random"] > means["kivi"] > means["int8"] > 0


def test_a_step_that_is_not_finite_is_unknown() -> None:
    """And nothing else is: the token's own entries are NaN, so that it is every step from there on."""
    item = prefilled(request(tiny.token_ids(20, seed=4)))
    (full,) = decode([item])

    class Faulty:
        def compress(self, prefill: Any, *, seed: int) -> Any:
            cache = make(METHODS["none"]).compress(prefill, seed=seed)
            cache.store.write(0, 3, *(torch.full((1, 2, 32), float("nan")) for _ in range(2)))
            return cache

    found = measure_divergence(tiny.decoder(), Faulty(), [item], {"r": full.token_ids}, seed=0)["r"]

    steps = len(full.token_ids) - 1
    assert found.kl == found.logprob_method == [None] * steps
    assert not any(found.top1_agree)
    assert found.top5_overlap == [0] * steps
    assert None not in found.logprob_full


def test_full_kvs_own_log_probabilities_are_those_of_its_greedy_choices() -> None:
    items, outputs = ragged()
    found = measured(METHODS["none"], items, outputs)
    for key, divergence in found.items():
        assert divergence.logprob_full == divergence.logprob_method, key
        assert all(value is not None and value <= 0 for value in divergence.logprob_full)
        assert divergence.top5_overlap == [5] * (len(outputs[key]) - 1)
