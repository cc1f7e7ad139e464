"""`--fail-on` is read strictly and decided by intervals; a baseline is compared by pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.records.samples import FULL, LOSSY, NAMES, OUTPUT, VERI, Sample, batch
from vcbench.errors import UsageError
from vcbench.lossless.baseline import compare_with_baseline
from vcbench.lossless.check import check_loaded
from vcbench.lossless.outcome import CheckResult, Finding
from vcbench.lossless.thresholds import evaluate, parse_fail_on, samples_to_decide
from vcbench.metrics.interval import paired_margin
from vcbench.metrics.measures import MEASURES
from vcbench.records.reader import Run, load_run
from vcbench.records.schema import BatchLine, DivergenceLine


def recorded(path: Path, sample: Sample) -> Run:
    return load_run(sample.write(path))


def found(run: Run, rules: str) -> tuple[CheckResult, list[Finding]]:
    result = check_loaded(run)
    findings = evaluate(parse_fail_on(rules), result, run)
    return replace(result, findings=tuple(findings)), findings


def test_the_example_is_read() -> None:
    rules = parse_fail_on("violations>0, acceptance<8 ,speedup<=1.2,kl>=1e-2")
    assert [str(rule) for rule in rules] == ["violations>0", "acceptance<8", "speedup<=1.2", "kl>=0.01"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not <metric> <operator> <number>"),
        ("acceptance", "'acceptance' is not <metric>"),
        ("acceptance<8,", "'' is not <metric>"),
        ("acceptance=8", "is not <metric>"),
        ("acceptence<8", "did you mean 'acceptance'"),
        ("acceptance<eight", "'eight' in 'acceptance<eight' is not a finite number"),
        ("acceptance<nan", "not a finite number"),
        ("acceptance<inf", "not a finite number"),
        ("acceptance>8", "would fail a run for being better; write acceptance<8"),
        ("kl<0.1", "write kl>0.1"),
        ("kl>0.1,kl>0.2", "names kl twice: kl>0.1 and kl>0.2"),
        ("violations>3", "only violations>0 can be asked for"),
        ("violations>=1", "only violations>0 can be asked for"),
        ("acceptance<8;kl>1", "is not a finite number"),
    ],
)
def test_anything_else_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fail_on(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "outcome"),
    [
        ("acceptance<2.9", "pass"),
        ("acceptance<3", "pass"),
        ("acceptance<=3", "fail"),
        ("acceptance<3.1", "fail"),
        ("speedup<1.3", "pass"),
        ("speedup<1.4", "fail"),
        ("kl>0.11", "pass"),
        ("kl>0.09", "fail"),
        ("kl_end>1.1", "pass"),
        ("tokens_per_s<11", "pass"),
        ("fast_factor<2.6", "pass"),
        ("fast_factor<2.7", "fail"),
        ("held_factor<0.7", "pass"),
        ("held_factor<0.8", "fail"),
        ("end_to_end_speedup<1.1", "pass"),
        ("end_to_end_speedup<1.2", "fail"),
        ("break_even>5", "pass"),
        ("break_even>4", "fail"),
        ("compress_s>0.2", "pass"),
        ("ttft_s>0.5", "fail"),
        ("exact<0.1", "inconclusive"),
        ("exact<0.7", "fail"),
        ("violations>0,ties>0,missing>0,stop_mismatches>0", "pass"),
    ],
)
def test_figures_that_do_not_vary_are_decided_at_once(tmp_path: Path, rules: str, outcome: str) -> None:
    """Every request: 9 tokens in 3 rounds, 0.75 s against 1 s, KL 0.1 a step, 450 bytes for 1,200."""
    result, findings = found(recorded(tmp_path / "run", Sample()), rules)
    assert {finding.outcome for finding in findings} >= {outcome}
    if outcome == "fail":
        assert (result.outcome, result.exit_code) == ("FAIL", 1)
    else:
        assert {finding.outcome for finding in findings} == {outcome} | ({"pass"} & {f.outcome for f in findings})
        assert result.outcome == {"pass": "PASS", "inconclusive": "INCONCLUSIVE"}[outcome]


def varied() -> Sample:
    """Two requests with 9 tokens in 3 rounds, two with 9 in 9."""
    slow = {"drafted": [1] * 9, "accepted": [0] * 9, "committed": [1] * 9}
    return Sample().change(VERI, "one", **slow).change(VERI, "two", **slow)


def test_an_interval_across_the_threshold_is_inconclusive(tmp_path: Path) -> None:
    result, (finding,) = found(recorded(tmp_path / "run", varied()), "acceptance<1.6")
    assert finding.outcome == "inconclusive"
    assert finding.value == pytest.approx(36 / 24)
    assert finding.low is not None
    assert finding.high is not None
    assert finding.low < 1.6 < finding.high
    assert finding.more is not None
    assert f"about {finding.more} more requests would decide it" in finding.detail
    assert (result.outcome, result.exit_code) == ("INCONCLUSIVE", 2)


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    _, (finding,) = found(recorded(tmp_path / "run", Sample(names=("one",))), "acceptance<1")
    assert (finding.outcome, finding.more) == ("inconclusive", 1)


def test_a_metric_that_no_cell_has_is_inconclusive(tmp_path: Path) -> None:
    sample = Sample()
    sample.others = [line for line in sample.others if isinstance(line, BatchLine)]
    result, (finding,) = found(recorded(tmp_path / "run", sample), "kl>0.1")
    assert (finding.outcome, finding.detail) == ("inconclusive", "no cell of this run has kl")
    assert result.exit_code == 2


def test_a_violation_outranks_an_undecided_threshold(tmp_path: Path) -> None:
    sample = varied().change(VERI, "three", token_ids=[99, *OUTPUT[1:]])
    result, _ = found(recorded(tmp_path / "run", sample), "violations>0,acceptance<1.6")
    assert result.outcome == "FAIL"


def test_how_many_more_samples() -> None:
    assert samples_to_decide(4, 0.5, 1.0) == 12
    assert samples_to_decide(100, -0.1, 0.11) == 21
    assert samples_to_decide(4, 0.0, 1.0) is None
    assert samples_to_decide(1, 0.5, None) == 1
    assert samples_to_decide(4, 1e-9, 1.0) is None


def test_the_margin_by_hand() -> None:
    now, before = [(2.0, 1.0), (4.0, 1.0)], [(3.0, 1.0), (3.0, 1.0)]
    better = paired_margin(now, before, better="higher", tolerance=0.1)
    assert better is not None
    assert better[:2] == (3.0, 3.0)
    assert better[2].value == pytest.approx(0.3)
    less = paired_margin(now, before, better="lower", tolerance=0.1)
    assert less is not None
    assert less[2].value == pytest.approx(0.3)
    assert paired_margin([], [], better="higher", tolerance=0.1) is None
    with pytest.raises(ValueError, match="1 values now for 2 before"):
        paired_margin(now[:1], before, better="higher", tolerance=0.1)


def against(tmp_path: Path, now: Sample, before: Sample, rules: str = "", **options: Any) -> dict[str, Finding]:
    runs = [recorded(tmp_path / name, sample) for name, sample in (("now", now), ("before", before))]
    thresholds = parse_fail_on(rules) if rules else []
    findings = compare_with_baseline(*runs, thresholds, **options)
    return {f"{finding.rule} {finding.cell}": finding for finding in findings}


def test_the_same_again_passes(tmp_path: Path) -> None:
    findings = against(tmp_path, Sample(), Sample())
    assert set(findings) == {
        "acceptance against baseline vericache snapkv k=4 (stdlib)",
        "speedup against baseline vericache snapkv k=4 (stdlib)",
        "end_to_end_speedup against baseline vericache snapkv k=4 (stdlib)",
        "kl against baseline lossy snapkv (stdlib)",
    }
    assert {finding.outcome for finding in findings.values()} == {"pass"}


def test_worse_by_more_than_tolerated_fails(tmp_path: Path) -> None:
    worse = Sample().change(VERI, drafted=[4] * 4, accepted=[2, 2, 1, 0], committed=[3, 3, 2, 1])
    findings = against(tmp_path, worse, Sample(), "acceptance<1")
    (finding,) = findings.values()
    assert finding.outcome == "fail"
    assert "2.25 now, 3 then (-25.0 %), 4 pairs, 5 % tolerated" in finding.detail
    (finding,) = against(tmp_path / "wide", worse, Sample(), "acceptance<1", tolerance=0.3).values()
    assert finding.outcome == "pass"


def test_a_mixed_change_is_inconclusive(tmp_path: Path) -> None:
    (finding,) = against(tmp_path, varied(), Sample(), "acceptance<1", tolerance=0.45).values()
    assert finding.outcome == "inconclusive"
    assert finding.more is not None


def test_only_the_same_prompts_are_paired(tmp_path: Path) -> None:
    (finding,) = against(tmp_path, Sample(), Sample(names=NAMES[:2]), "acceptance<1").values()
    assert finding.n == 2
    (finding,) = against(tmp_path / "none", Sample(), Sample(names=("x", "y")), "acceptance<1").values()
    assert (finding.outcome, finding.detail) == (
        "inconclusive",
        "the baseline's cell has no such request with these figures",
    )


def test_other_settings_and_other_hardware_decide_nothing(tmp_path: Path) -> None:
    other = Sample()
    other.model = "other"
    (finding,) = against(tmp_path, other, Sample()).values()
    assert (finding.outcome, finding.detail) == ("inconclusive", "other settings than the baseline: model")
    now, before = (recorded(tmp_path / name, Sample()) for name in ("a", "b"))
    before.provenance["hardware"] = {"cpu": "another"}
    findings = compare_with_baseline(now, before, parse_fail_on("speedup<1,acceptance<1"))
    assert [finding.outcome for finding in findings] == ["inconclusive", "pass"]
    assert "speeds are not comparable: processor not stated in a, another in b" in findings[0].detail
    before.provenance["hardware"] = {}
    before.config["engine"]["batch_size"] = 4
    (finding,) = compare_with_baseline(now, before, parse_fail_on("speedup<1"))
    assert "batch size not stated in a, 4 in b" in finding.detail


def test_a_baseline_without_the_task_says_so(tmp_path: Path) -> None:
    other = Sample(cells=[cell | {"task": "other"} for cell in (FULL, VERI)])
    for name in ("prompts", "requests", "others"):
        moved = [
            replace(line, task="other") for line in getattr(other, name) if getattr(line, "cell", "") != LOSSY["id"]
        ]
        setattr(other, name, moved)
    (finding,) = against(tmp_path, Sample(), other).values()
    assert (finding.outcome, finding.detail) == ("inconclusive", "the baseline has no task stdlib; it has other")


def test_a_batch_of_the_same_requests_in_another_order_is_paired(tmp_path: Path) -> None:
    """P15: in the run and against the baseline."""

    def ordered(*requests: str) -> Sample:
        sample = Sample(cells=[FULL, VERI])
        sample.others = [
            batch(cell, "one", requests=list(pair), tokens=18)
            for cell, pairs in ((FULL, [("one", "two"), ("three", "four")]), (VERI, [requests[:2], requests[2:]]))
            for pair in pairs
        ]
        return sample

    now, before = ordered("two", "one", "four", "three"), ordered("one", "two", "three", "four")
    _, (finding,) = found(recorded(tmp_path / "run", now), "speedup<1.3")
    assert (finding.outcome, finding.value, finding.n) == ("pass", pytest.approx(4 / 3), 2)
    (finding,) = against(tmp_path, now, before, "speedup<1").values()
    assert (finding.outcome, finding.n) == ("pass", 2)


def test_a_baseline_judges_less_kl_as_better(tmp_path: Path) -> None:
    """Directions come from one table: a KL that halves is no regression, one that doubles is."""

    def scaled(by: float) -> Sample:
        sample = Sample()
        sample.others = [
            replace(line, kl=[by * (value or 0.0) for value in line.kl]) if isinstance(line, DivergenceLine) else line
            for line in sample.others
        ]
        return sample

    (finding,) = against(tmp_path / "less", scaled(0.5), Sample(), "kl>1").values()
    assert finding.outcome == "pass"
    (finding,) = against(tmp_path / "more", scaled(2.0), Sample(), "kl>1").values()
    assert finding.outcome == "fail"


def test_a_share_against_a_baseline_is_decided_by_exact_intervals(tmp_path: Path) -> None:
    """P17: four equal outputs of four in both runs do not show that at most 5 % would differ."""
    (_, veri) = against(tmp_path, Sample(), Sample(), "exact<1").values()
    assert (veri.outcome, veri.value) == ("inconclusive", 1.0)


def test_never_is_said_and_fails_a_bound_on_the_break_even_length(tmp_path: Path) -> None:
    sample = Sample()
    sample.others = [
        replace(line, timing=line.timing | {"decode_s": 2.0})
        if isinstance(line, BatchLine) and line.cell == VERI["id"]
        else line
        for line in sample.others
    ]
    result, (finding,) = found(recorded(tmp_path / "run", sample), "break_even>1000")
    assert (finding.outcome, finding.value, finding.detail) == ("fail", None, "never [never, never], n = 4")
    json.dumps([finding.as_dict() for finding in result.findings], allow_nan=False)


def test_a_busy_machine_is_said(tmp_path: Path) -> None:
    sample = Sample()
    sample.others = [
        replace(line, timing=line.timing | {"other_cpu_s": 1.2}) if isinstance(line, BatchLine) else line
        for line in sample.others
    ]
    _, (finding,) = found(recorded(tmp_path / "run", sample), "speedup<1.2")
    assert "the machine was busy: other processes used 1.0 of 2 processors" in finding.detail


def test_the_retired_factor_says_what_to_ask_for() -> None:
    with pytest.raises(UsageError, match=r"kv_factor did not say whose bytes; ask for fast_factor .* or held_factor"):
        parse_fail_on("kv_factor<2")


def test_a_run_is_no_baseline_of_itself(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Sample())
    with pytest.raises(UsageError, match="is the run itself"):
        compare_with_baseline(run, run, [])
    with pytest.raises(UsageError, match="--tolerance is 1"):
        compare_with_baseline(run, recorded(tmp_path / "b", Sample()), [], tolerance=1)


def test_every_measure_is_read_from_records(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", Sample())
    for cell in (VERI, LOSSY):
        info = next(entry for entry in run.cells if entry.id == cell["id"])
        assert any(measure.samples(run, info, "stdlib") for measure in MEASURES.values())
