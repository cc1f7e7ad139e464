"""Sampling end to end on the small model: VeriCache draws what full KV draws, and draws it from the right law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.compressors.examples import make
from tests.engine import tiny
from tests.engine.cells import BATCHES, METHODS, batch, check_same, decode, prefilled, request
from vcbench.config.sampling import Sampling
from vcbench.engine.decoding.levels import Span
from vcbench.engine.decoding.session import CellSetup, Prefilled, run_cell
from vcbench.engine.model.decoder import Block
from vcbench.engine.sampling.selector import Selector
from vcbench.engine.types import Generation

SETTINGS: dict[str, Sampling] = {
    "plain": Sampling(temperature=1.0, seed=1),
    "cool": Sampling(temperature=0.5, top_k=20, top_p=0.95, min_p=0.02, seed=2),
    "penalties": Sampling(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.6, frequency_penalty=0.4, seed=3),
    "greedy-penalties": Sampling(repetition_penalty=1.2, presence_penalty=1.0, logit_bias={4: 1.0}),
    "everything": Sampling(
        temperature=1.2,
        top_k=60,
        top_p=0.97,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=-0.2,
        logit_bias={1: -2.0, 50: 1.5},
        min_tokens=9,
        seed=4,
    ),
}
ALONE = {
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 1.0},
    "frequency_penalty": {"frequency_penalty": 0.7},
    "logit_bias": {"logit_bias": {4: 2.0, 9: -3.0}},
    "min_tokens": {"min_tokens": 12},
}
"""One setting each, beside a temperature."""
STOPS = frozenset(range(0, 101, 6))
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
settings = pytest.mark.parametrize("setting", SETTINGS)


@cache
def sampled(name: str, setting: str, dtype: torch.dtype = torch.float32) -> tuple[Prefilled, ...]:
    """A batch whose requests sample; `everything` may stop."""
    stops = STOPS if setting == "everything" else frozenset()
    return tuple(
        Prefilled(replace(item.request, sampling=SETTINGS[setting], stop_ids=stops), item.prefill)
        for item in batch(name, tiny.decoder(tiny.ARCHITECTURE, dtype))
    )


@cache
def full_outputs(name: str, setting: str, dtype: torch.dtype = torch.float32) -> tuple[Generation, ...]:
    decoder = tiny.decoder(tiny.ARCHITECTURE, dtype)
    return tuple(decode([item], decoder=decoder)[0] for item in sampled(name, setting, dtype))


def drawn(items: Sequence[Prefilled], **changes: Any) -> list[list[int]]:
    """What full KV draws with other sampling."""
    others = [
        Prefilled(replace(item.request, sampling=replace(item.request.sampling, **changes)), item.prefill)
        for item in items
    ]
    return [done.token_ids for done in decode(others)]


@methods
def test_vericache_draws_what_full_kv_draws_whatever_the_method(method: Any) -> None:
    check_draws(method, "everything", "ragged", 5)


@settings
@pytest.mark.parametrize("method", ["none", "snapkv", "kivi", "random"])
@pytest.mark.parametrize(("name", "draft_length"), [("one", 5), ("ragged", 1), ("ragged", 5), ("ragged", 40)])
def test_vericache_draws_what_full_kv_draws(method: str, setting: str, name: str, draft_length: int) -> None:
    check_draws(METHODS[method], setting, name, draft_length)


def check_draws(method: Any, setting: str, name: str, draft_length: int) -> None:
    """Ids and logits, bit for bit; without compression every draft is accepted, up to where a stop cuts one."""
    ours = decode(sampled(name, setting), "vericache", make(method), draft_length)
    for done, full in zip(ours, full_outputs(name, setting), strict=True):
        check_same(done, full)
        if make(method).kind == "none":
            assert all(each.accepted == each.drafted for each in done.rounds[:-1])


@settings
@pytest.mark.parametrize("method", ["snapkv", "kivi"])
def test_vericache_draws_what_full_kv_draws_in_bfloat16(method: str, setting: str) -> None:
    decoder = tiny.decoder(tiny.ARCHITECTURE, torch.bfloat16)
    items = sampled("ragged", setting, torch.bfloat16)
    ours = decode(items, "vericache", make(METHODS[method]), 5, decoder=decoder)
    for done, full in zip(ours, full_outputs("ragged", setting, torch.bfloat16), strict=True):
        check_same(done, full)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("alone", ALONE)
def test_each_setting_alone(alone: str, temperature: float) -> None:
    """VeriCache draws what full KV draws, and the setting matters: without it another output is drawn."""
    sampling, stops = Sampling(temperature=temperature, seed=6, **ALONE[alone]), STOPS if alone == "min_tokens" else ()
    items = [
        Prefilled(replace(item.request, sampling=sampling, stop_ids=frozenset(stops)), item.prefill)
        for item in batch("ragged", tiny.decoder())
    ]
    full = [decode([item])[0] for item in items]
    for done, expected in zip(decode(items, "vericache", make(METHODS["streamingllm"]), 5), full, strict=True):
        check_same(done, expected)
    without = Sampling(temperature=temperature, seed=6)
    plain = [Prefilled(replace(item.request, sampling=without), item.prefill) for item in items]
    filters = alone in ("top_k", "top_p", "min_p")
    same = [done.token_ids for done in full] == [done.token_ids for done in decode(plain)]
    assert same == (filters and temperature == 0)


def test_requests_of_a_batch_may_sample_differently() -> None:
    kinds = [Sampling(), *SETTINGS.values()]
    items = [prefilled(request(tiny.token_ids(20 + i, seed=i), str(i), sampling=kind)) for i, kind in enumerate(kinds)]
    together = decode(items, "vericache", make(METHODS["snapkv"]), 6)
    for item, ours in zip(items, together, strict=True):
        check_same(ours, decode([item])[0])


def test_seed_and_request_decide() -> None:
    items = sampled("ragged", "plain")
    first = drawn(items)
    assert drawn(items) == first
    assert all(other != same for other, same in zip(drawn(items, seed=99), first, strict=True))
    assert drawn(items, temperature=0.0) == drawn(items, temperature=0.0, seed=99)
    (renamed,) = [Prefilled(replace(items[0].request, id="other"), items[0].prefill)]
    assert decode([renamed])[0].token_ids != first[0]


@pytest.mark.parametrize("name", BATCHES)
def test_temperature_0_is_the_greedy_path_bit_for_bit(name: str) -> None:
    """Also where a bias of nothing sends the row through all the steps."""
    greedy = decode(batch(name, tiny.decoder()))
    for sampling in (Sampling(top_k=3, top_p=0.5, min_p=0.9, seed=7), Sampling(logit_bias={3: 0.0})):
        items = [Prefilled(replace(i.request, sampling=sampling), i.prefill) for i in batch(name, tiny.decoder())]
        for arm, compressor in (("full", None), ("vericache", make(METHODS["kivi"]))):
            for ours, plain in zip(decode(items, arm, compressor, 4), greedy, strict=True):  # type: ignore[arg-type]
                assert ours.token_ids == plain.token_ids
                assert ours.logits_sha256 == plain.logits_sha256


def test_drafts_are_accepted_when_sampling_too() -> None:
    """The same noise in draft and verification: independent draws would agree far less often."""
    shares, chance = {}, []
    for name in ("int8", "kivi", "snapkv"):
        done = decode(sampled("ragged", "plain"), "vericache", make(METHODS[name]), 8)
        rounds = [each for generation in done for each in generation.rounds]
        shares[name] = sum(each.accepted for each in rounds) / sum(each.drafted for each in rounds)
    for item, full in zip(sampled("ragged", "plain"), full_outputs("ragged", "plain"), strict=True):
        chance += [float(law @ law) for law in laws(item, full.token_ids)]
    print(shares, np.mean(chance))

    assert shares["int8"] > 0.9
    assert shares["kivi"] > 2 * np.mean(chance)


@pytest.mark.parametrize("draft_length", [2, 5, 40])
@pytest.mark.parametrize("name", ["none", "snapkv"])
@pytest.mark.parametrize("setting", ["penalties", "greedy-penalties"])
def test_penalties_that_forget_the_same_round_are_noticed(
    name: str, draft_length: int, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault `penalty_ignores_same_round`: rows of a block see only what was committed before it."""
    full = full_outputs("ragged", setting)
    monkeypatch.setattr(Span, "output_before", lambda span, row: span.progress.token_ids)
    ours = decode(sampled("ragged", setting), "vericache", make(METHODS[name]), draft_length)

    assert any(done.token_ids != reference.token_ids for done, reference in zip(ours, full, strict=True))


@pytest.mark.parametrize("draft_length", [1, 4, 40])
@pytest.mark.parametrize("least", [0, 1, 5, 26])
def test_stop_ids_end_nothing_before_min_tokens(least: int, draft_length: int) -> None:
    """Every second token is a stop id."""
    sampling = Sampling(temperature=1.0, min_tokens=least, seed=3)
    wanted = request(tiny.token_ids(40, seed=2), sampling=sampling, stop_ids=frozenset(range(0, 101, 2)))
    item = prefilled(wanted)
    (full,) = decode([item])
    (ours,) = decode([item], "vericache", make(METHODS["snapkv"]), draft_length)

    check_same(ours, full)
    assert all(token % 2 for token in full.token_ids[:least])
    assert len(full.token_ids) == 26 or full.token_ids[-1] % 2 == 0
    assert least < 26 or len(full.token_ids) == 26


class Letters:
    """Text of a token: one letter of two."""

    def push(self, token_id: int) -> str:
        return "ab"[token_id % 2]


@pytest.mark.parametrize("draft_length", [1, 4, 40])
@pytest.mark.parametrize("stops", [("ab",), ("a", "bbbbbbbb"), ("abab", "bb")], ids=str)
@pytest.mark.parametrize("least", [0, 1, 2, 7])
def test_stop_strings_end_nothing_before_min_tokens(least: int, stops: tuple[str, ...], draft_length: int) -> None:
    """A string that is complete by then does not count later either; one that a later token completes does."""
    sampling = Sampling(temperature=1.0, min_tokens=least, seed=3)
    item = prefilled(request(tiny.token_ids(40, seed=2), sampling=sampling, stop_strings=stops))
    free = decode([prefilled(request(tiny.token_ids(40, seed=2), sampling=sampling))])[0].token_ids
    text = "".join("ab"[token % 2] for token in free)
    ends = [n for n in range(least + 1, 27) if any(text[:n].endswith(stop) for stop in stops)]
    for arm, compressor in (("full", None), ("vericache", make(METHODS["snapkv"]))):
        ended: list[Generation] = []
        setup = CellSetup(arm=arm, compressor=compressor, draft_length=draft_length)  # type: ignore[arg-type]
        run_cell(tiny.decoder(), setup, [item], on_end=ended.append, stream=Letters)
        assert ended[0].token_ids == free[: ends[0] if ends else 26]
        assert ended[0].finish_reason == ("stop" if ends else "length")


def test_nan_is_no_draw() -> None:
    item = prefilled(request(tiny.token_ids(9), sampling=SETTINGS["plain"]))
    item.prefill.first_logits[3] = float("nan")
    (failed,) = decode([item])
    assert failed.error == "logits are not finite at step 0, in the prefill"


def laws(item: Prefilled, output: Sequence[int]) -> list[NDArray[np.float64]]:
    """The probabilities that each output token was drawn from: teacher-forced, one pass over the full cache."""
    cache = item.prefill.cache
    rows = [item.prefill.first_logits[None]]
    if len(output) > 1:
        rows.append(tiny.decoder().forward([Block(cache, output[:-1])]))
        cache.rewind(len(item.request.prompt_ids))
    logits, selector = torch.cat(rows).numpy(), Selector(item.request)
    return [selector.law(row, output[:i], i) for i, row in enumerate(logits)]


def chi_square_p(observed: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """The chance of a statistic as large; cells that expect fewer than 5 are put together."""
    rare = expected < 5
    cells = [*zip(observed[~rare], expected[~rare], strict=True), (observed[rare].sum(), expected[rare].sum())]
    cells = [(o, e) for o, e in cells if e > 0]
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


@pytest.mark.parametrize("setting", ["plain", "everything"])
def test_draws_of_one_row_follow_its_law(setting: str) -> None:
    """20,000 seeds; the seeds are fixed, so that the threshold of 1e-4 is passed always or never."""
    (item,) = sampled("one", setting)
    row, output = item.prefill.first_logits.numpy(), [3, 3, 50]
    counts = np.zeros(len(row), np.int64)
    for seed in range(20_000):
        chosen_by = Selector(replace(item.request, sampling=replace(item.request.sampling, seed=seed)))
        counts[chosen_by.choose(row, output, 3)] += 1
    law = Selector(item.request).law(row, output, 3)

    assert counts[law == 0].sum() == 0
    assert chi_square_p(counts, 20_000 * law) > 1e-4


@pytest.mark.parametrize("setting", ["plain", pytest.param("everything", marks=pytest.mark.slow)])
def test_drafted_and_verified_tokens_follow_their_laws(setting: str) -> None:
    """20,480 positions: law(all ids below the token) + r law(token), with a uniform r, is uniform if all is right.

    Neighbouring positions and requests are independent then, which a chi-square over pairs of neighbours tests too.
    """
    items = many(setting)
    uniform = np.random.default_rng(5)
    shares = []
    generations = decode(items, "vericache", make(METHODS["streamingllm"]), 3)
    assert any(each.accepted < each.drafted for done in generations for each in done.rounds)
    for item, done in zip(items, generations, strict=True):
        for token, law in zip(done.token_ids, laws(item, done.token_ids), strict=True):
            assert law[token] > 0
            shares.append(law[:token].sum() + uniform.random() * law[token])
    assert len(shares) == 20_480
    bins = np.minimum((np.array(shares) * 64).astype(int), 63)
    pairs = 8 * (bins[:-1] // 8) + bins[1:] // 8

    assert chi_square_p(np.bincount(bins, minlength=64), np.full(64, len(bins) / 64)) > 1e-4
    assert chi_square_p(np.bincount(pairs, minlength=64), np.full(64, len(pairs) / 64)) > 1e-4


@cache
def many(setting: str) -> tuple[Prefilled, ...]:
    """64 requests of 320 tokens each, after different prompts."""
    items = []
    for number in range(64):
        wanted = request(tiny.token_ids(12, seed=number), str(number), 320, sampling=SETTINGS[setting])
        items.append(Prefilled(wanted, tiny.decoder().prefill(wanted.prompt_ids, chunk=64)))
    return tuple(items)
