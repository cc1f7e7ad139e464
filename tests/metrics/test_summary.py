"""A run's figures, reckoned by hand from the sample; failures, gaps and contradictions are counted, not hidden."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.records.samples import FULL, LOSSY, NAMES, VERI, Sample, batch, divergence, kv
from vcbench.metrics.batches import timed_batch
from vcbench.metrics.bytes import factors, held
from vcbench.metrics.interval import Estimate
from vcbench.metrics.measures import MEASURES, NEVER
from vcbench.metrics.summary import CellSummary, summarise
from vcbench.metrics.throughput import throughput
from vcbench.records.codec import plain
from vcbench.records.reader import load_run


def rows(sample: Sample, path: Path) -> list[CellSummary]:
    return summarise(load_run(sample.write(path / "run")))


def value(estimate: object) -> float:
    return estimate.value  # type: ignore[attr-defined, no-any-return]


def test_by_hand(tmp_path: Path) -> None:
    full, lossy, veri = rows(Sample(), tmp_path)
    assert [row.cell.label for row in (full, lossy, veri)] == [cell["label"] for cell in (FULL, LOSSY, VERI)]
    assert all((row.prompts, row.n, row.errors, row.missing) == (4, 4, 0, 0) for row in (full, lossy, veri))
    assert full.agreement is None
    assert full.divergence is None
    assert full.acceptance is None
    assert full.speedup == Estimate(value=1.0, low=1.0, high=1.0, n=4)
    assert lossy.agreement is not None
    assert (lossy.agreement.diverged, lossy.agreement.first_divergence) == (4, 6.0)
    assert value(lossy.agreement.exact) == 0.0
    assert value(lossy.agreement.token_f1) == pytest.approx(0.6)
    assert lossy.divergence is not None
    assert value(lossy.divergence.mean) == pytest.approx(0.1)
    assert value(lossy.divergence.sequence) == pytest.approx(1.0)
    assert value(lossy.divergence.top1_agreement) == 0.9
    assert lossy.divergence.percentiles[-1] == pytest.approx(0.3)
    assert lossy.at_start.stored == 4.0
    assert lossy.at_start.codes == 8.0
    assert lossy.at_end.stored == pytest.approx(1200 / 450)
    assert value(lossy.speedup) == 2.0
    assert veri.agreement is not None
    assert (veri.agreement.diverged, veri.agreement.first_divergence) == (0, None)
    assert value(veri.agreement.exact) == 1.0
    assert value(veri.measures["acceptance"]) == 3.0
    assert value(veri.measures["tokens_per_s"]) == 12.0
    assert value(veri.speedup) == pytest.approx(4 / 3)
    assert veri.speed.draft_s_per_round == pytest.approx(0.1)
    assert veri.speed.peak_rss_bytes == 2**30
    assert value(veri.prefill_tokens_per_s) == 8.0
    assert value(veri.measures["looped"]) == 0.0
    assert veri.problems == ()


def test_failures_are_counted_and_kept_out(tmp_path: Path) -> None:
    sample = Sample().change(LOSSY, "two", error="NaN in the logits at step 3, layer 5", finish_reason="error")
    sample.drop(LOSSY, "three")
    _, lossy, _ = rows(sample, tmp_path)
    assert (lossy.n, lossy.errors, lossy.missing) == (2, 1, 1)
    assert lossy.problems == ("lossy snapkv, task stdlib, request two: NaN in the logits at step 3, layer 5",)
    assert lossy.agreement is not None
    assert lossy.agreement.n == 2
    assert lossy.speed.batches == 2
    assert value(lossy.measures["tokens_per_s"]) == 18.0


def test_a_failed_baseline_is_not_compared_with(tmp_path: Path) -> None:
    _, lossy, veri = rows(Sample().change(FULL, "one", error="x", finish_reason="error"), tmp_path)
    assert lossy.agreement is not None
    assert veri.agreement is not None
    assert lossy.agreement.n == veri.agreement.n == 3


def test_nothing_recorded_gives_none_everywhere(tmp_path: Path) -> None:
    sample = Sample()
    sample.requests = []
    sample.others = []
    for row in rows(sample, tmp_path):
        assert (row.n, row.missing) == (0, 4)
        assert all(found is None for found in row.measures.values())
        assert row.at_start.stored is None
        assert row.divergence is None
    sample.prompts = []
    for row in rows(sample, tmp_path / "empty"):
        assert (row.prompts, row.n, row.missing) == (0, 0, 0)
        assert row.prefill_tokens_per_s is None


def test_without_a_baseline(tmp_path: Path) -> None:
    lossy, veri = rows(Sample(cells=[LOSSY, VERI]), tmp_path)
    assert lossy.agreement is None
    assert veri.speedup is None


def test_counting_identity_is_reported(tmp_path: Path) -> None:
    sample = Sample().change(VERI, "two", committed=[5, 3, 1], token_ids=[10, 11])
    _, _, veri = rows(sample, tmp_path)
    assert veri.problems == (
        "vericache snapkv k=4, task stdlib, request two: 1 + 9 tokens committed over 3 rounds, but 2 in the output",
        "vericache snapkv k=4, task stdlib: batch of two: 9 tokens, but 1 decoded in the outputs",
    )


def test_unknown_kl_is_not_counted_as_zero(tmp_path: Path) -> None:
    sample = Sample()
    sample.others = [
        *[batch(cell, name) for cell in sample.cells for name in NAMES],
        divergence(LOSSY, "one", kl=[0.5, None], top1_agree=[True, False]),
        divergence(LOSSY, "two", kl=[0.1, 0.3], top1_agree=[True, True]),
        divergence(LOSSY, "three", kl=[], top1_agree=[]),
        divergence(LOSSY, "four", kl=[None], top1_agree=[False]),
    ]
    _, lossy, _ = rows(sample, tmp_path)
    assert lossy.divergence is not None
    assert (lossy.divergence.steps, lossy.divergence.unknown) == (5, 2)
    assert value(lossy.divergence.mean) == pytest.approx(0.3)
    assert value(lossy.divergence.sequence) == pytest.approx(0.4)
    assert value(lossy.divergence.top1_agreement) == pytest.approx(3 / 5)


def test_throughput_of_ragged_batches() -> None:
    sample = Sample(names=("one", "two"))
    requests = {line.request: line for line in sample.requests if line.cell == VERI["id"]}
    both = batch(VERI, "one", requests=["one", "two"], tokens=18)
    found = timed_batch(both, requests)
    assert found is not None
    assert (found.tokens, found.output_tokens, found.decode_s, found.before_s) == (18, 20, 0.75, pytest.approx(1.1))
    requests["two"] = replace(requests["two"], error="failed", token_ids=[1, 2, 3])
    shared = replace(both, tokens=11)
    speed = throughput([shared, batch(VERI, "two", tokens=2)], requests)
    assert (speed.tokens, speed.batches, speed.decode_s) == (9, 1, 0.75)
    assert timed_batch(batch(VERI, "one", timing={}), requests) is None


def test_factors_need_whole_entries() -> None:
    lines = Sample().change(LOSSY, "one", kv_start=None).change(LOSSY, "two", kv_start={"stored": 1}).requests
    lossy = [line for line in lines if line.cell == LOSSY["id"]]
    assert factors(lossy, "kv_start").n == 2
    empty = [replace(line, kv_start=kv(0, 10)) for line in lossy]
    assert factors(empty, "kv_start").stored is None


def test_rows_can_be_written_as_json(tmp_path: Path) -> None:
    for row in rows(Sample(), tmp_path):
        assert json.loads(json.dumps(plain(row.as_dict()), allow_nan=False))["task"] == "stdlib"


def test_end_to_end_by_hand(tmp_path: Path) -> None:
    """A request takes 0.5 s of prefill, and 0.1 s of compression in two arms; 9 tokens decode in 1, 0.5, 0.75 s."""
    full, lossy, veri = rows(Sample(), tmp_path)
    found = [{name: each.value for name, each in row.measures.items() if each} for row in (full, lossy, veri)]
    assert [each["prefill_s"] for each in found] == [0.5] * 3
    assert [each["compress_s"] for each in found] == [0.0, 0.1, 0.1]
    assert [each["ttft_s"] for each in found] == [0.5, 0.6, 0.6]
    rates = [10 / 1.5, 10 / 1.1, 10 / 1.35]
    assert [each["end_to_end_tokens_per_s"] for each in found] == pytest.approx(rates)
    assert [each["end_to_end_speedup"] for each in found] == pytest.approx([1.0, 1.5 / 1.1, 1.5 / 1.35])
    # 0.1 s more before decoding; a token takes 0.5 / 9 s or 0.25 / 9 s less.
    assert [each.get("break_even") for each in found] == [None, 3.0, 5.0]


def test_compression_that_decoding_never_makes_up_for(tmp_path: Path) -> None:
    """201 s of compression and twice the decode speed: far behind at 10 tokens; slower decoding is never ahead."""
    sample = Sample()
    for kind in ("requests", "others"):
        slow = [
            replace(line, timing=line.timing | {"compress_s": 201.0})
            if getattr(line, "cell", "") == LOSSY["id"] and "compress_s" in line.timing
            else line
            for line in getattr(sample, kind)
        ]
        setattr(sample, kind, slow)
    sample.others = [
        replace(line, timing=line.timing | {"decode_s": 1.5}) if getattr(line, "cell", "") == VERI["id"] else line
        for line in sample.others
    ]
    _, lossy, veri = rows(sample, tmp_path)
    assert value(lossy.speedup) == 2.0
    assert value(lossy.measures["end_to_end_speedup"]) == pytest.approx(1.5 / 202)
    assert value(lossy.measures["break_even"]) == int(201 / (0.5 / 9)) + 2
    assert value(veri.measures["break_even"]) == NEVER
    assert veri.as_dict()["measures"]["break_even"]["value"] == "never"


def test_requests_that_end_in_another_order_are_the_same_batch(tmp_path: Path) -> None:
    """P15: one batch of two in each arm, written in the order in which its requests ended."""
    sample = Sample(cells=[FULL, VERI])
    sample.others = [
        batch(FULL, "one", requests=["one", "two"], tokens=18),
        batch(FULL, "three", requests=["three", "four"], tokens=18),
        batch(VERI, "one", requests=["two", "one"], tokens=18),
        batch(VERI, "three", requests=["three", "four"], tokens=18),
    ]
    sample.others[2] = replace(sample.others[2], timing=sample.others[2].timing | {"decode_s": 6.0})
    _, veri = rows(sample, tmp_path)
    assert (veri.batches, veri.paired) == (2, 2)
    assert value(veri.speedup) == pytest.approx(2.0 / 6.75)


def test_batches_without_a_partner_enter_no_speedup(tmp_path: Path) -> None:
    sample = Sample(cells=[FULL, VERI])
    alone = batch(VERI, "three", requests=["three", "four"], tokens=18)
    sample.others = [line for line in sample.others if getattr(line, "requests", None) not in (["three"], ["four"])]
    sample.others += [batch(FULL, name) for name in ("three", "four")] + [alone]
    _, veri = rows(sample, tmp_path)
    assert (veri.batches, veri.paired) == (3, 2)
    assert value(veri.speedup) == pytest.approx(4 / 3)
    assert value(veri.measures["tokens_per_s"]) == pytest.approx(36 / (3 * 0.75))


def test_one_batch_has_no_interval(tmp_path: Path) -> None:
    _, _, veri = rows(Sample(names=("one",)), tmp_path)
    assert veri.speedup == Estimate(value=pytest.approx(4 / 3), low=None, high=None, n=1)


def test_old_records_leave_end_to_end_unknown(tmp_path: Path) -> None:
    sample = Sample()
    sample.requests = [replace(line, schema=2, timing={"decode_s": 1.0}) for line in sample.requests]
    for row in rows(sample, tmp_path):
        for name in ("prefill_s", "ttft_s", "end_to_end_speedup", "end_to_end_tokens_per_s", "break_even"):
            assert row.measures[name] is None, name
        assert row.speedup is not None


def test_shares_have_exact_intervals(tmp_path: Path) -> None:
    """P17: 0 of 4 may be up to 60 %."""
    _, lossy, _ = rows(Sample(), tmp_path)
    for name in ("exact", "looped"):
        found = lossy.measures[name]
        assert found is not None
        assert (found.value, found.low) == (0.0, 0.0)
        assert found.high == pytest.approx(0.6024, abs=1e-4)
    assert lossy.agreement is not None
    assert lossy.agreement.exact == lossy.measures["exact"]


def test_acceptance_over_unlooped_answers_alone(tmp_path: Path) -> None:
    sample = Sample().change(
        VERI, "two", token_ids=[5] * 30, drafted=[4] * 6, accepted=[4, 4, 4, 4, 4, 3], committed=[5, 5, 5, 5, 5, 4]
    )
    _, _, veri = rows(sample, tmp_path)
    assert value(veri.measures["acceptance"]) == pytest.approx((3 * 9 + 29) / 15)
    assert value(veri.measures["acceptance_unlooped"]) == 3.0
    assert value(veri.measures["looped"]) == 0.25


def whose(stored: int, full: int, copies: dict[str, int]) -> dict[str, object]:
    return kv(stored, full, copies.get("memory", 0)) | {"full_copy": copies}


def test_whose_bytes() -> None:
    """P20: what drafting needs in memory, and what is held in all: with the full copy, on whatever tier it lies."""
    line = Sample().requests[0]
    cases = {
        "lossy": (whose(250, 1000, {}), 250, {"memory": 250}),
        "in memory": (whose(250, 1000, {"memory": 1030}), 250, {"memory": 1280}),
        "on disk": (whose(250, 1000, {"memory": 60, "disk": 1030}), 310, {"memory": 310, "disk": 1030}),
        "before there was full_copy": (whose(250, 1000, {}) | {"resident": 1250}, 250, {"memory": 1250}),
    }
    for name, (entry, fast, tiers) in cases.items():
        found = held(replace(line, kv_end=entry), "kv_end")
        assert found is not None
        assert (found.fast, dict(found.tiers)) == (fast, tiers), name
    both = factors([replace(line, kv_end=cases["on disk"][0])] * 2, "kv_end")
    assert (both.fast, both.held) == (pytest.approx(1000 / 310), pytest.approx(1000 / 1340))
    assert both.tiers == {"disk": 2060, "memory": 620}


def test_every_measure_is_documented_with_its_direction() -> None:
    lower = {"break_even", "full_loads", "prefill_s", "compress_s", "ttft_s", "kl", "kl_end", "looped"}
    assert {name for name, measure in MEASURES.items() if measure.better == "lower"} == lower
