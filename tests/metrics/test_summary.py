"""A run's figures, reckoned by hand from the sample; failures, gaps and contradictions are counted, not hidden."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.records.samples import FULL, LOSSY, NAMES, VERI, Sample, batch, divergence, kv
from vcbench.metrics.bytes import factors
from vcbench.metrics.summary import CellSummary, summarise
from vcbench.metrics.throughput import prefill_tokens_per_s, throughput
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
    assert full.speedup == 1.0
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
    assert lossy.speedup == 2.0
    assert veri.agreement is not None
    assert (veri.agreement.diverged, veri.agreement.first_divergence) == (0, None)
    assert value(veri.agreement.exact) == 1.0
    assert value(veri.committed_per_round) == 3.0
    assert value(veri.speed.decode_tokens_per_s) == 12.0
    assert veri.speedup == pytest.approx(4 / 3)
    assert veri.speed.draft_s_per_round == pytest.approx(0.1)
    assert veri.speed.peak_rss_bytes == 2**30
    assert value(veri.prefill_tokens_per_s) == 8.0
    assert value(veri.looped) == 0.0
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
    assert value(lossy.speed.decode_tokens_per_s) == 18.0


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
        assert row.looped is None
        assert row.at_start.stored is None
        assert row.speed.decode_tokens_per_s is None
        assert row.speedup is None
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
    assert value(throughput([both], requests).decode_tokens_per_s) == 24.0
    requests["two"] = replace(requests["two"], error="failed", token_ids=[1, 2, 3])
    shared = replace(both, tokens=11)
    speed = throughput([shared, batch(VERI, "two", tokens=2)], requests)
    assert (speed.tokens, speed.batches, speed.decode_s) == (9, 1, 0.75)
    assert value(speed.decode_tokens_per_s) == 12.0
    assert throughput([batch(VERI, "one", timing={})], requests).decode_tokens_per_s is None


def test_prompts_that_were_never_prefilled() -> None:
    prompts = [replace(line, timing={"prefill_s": 0.0}) for line in Sample().prompts]
    assert prefill_tokens_per_s(prompts) is None


def test_factors_need_whole_entries() -> None:
    lines = Sample().change(LOSSY, "one", kv_start=None).change(LOSSY, "two", kv_start={"stored": 1}).requests
    lossy = [line for line in lines if line.cell == LOSSY["id"]]
    assert factors(lossy, "kv_start").n == 2
    empty = [replace(line, kv_start=kv(0, 10)) for line in lossy]
    assert factors(empty, "kv_start").stored is None


def test_rows_can_be_written_as_json(tmp_path: Path) -> None:
    for row in rows(Sample(), tmp_path):
        assert json.loads(json.dumps(plain(row.as_dict()), allow_nan=False))["task"] == "stdlib"
