"""`--fail-on` is read strictly and decided by intervals; a baseline is compared by pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.records.samples import LOSSY, NAMES, OUTPUT, VERI, Sample
from vcbench.errors import UsageError
from vcbench.lossless.baseline import compare_with_baseline
from vcbench.lossless.check import check_loaded
from vcbench.lossless.measures import MEASURES
from vcbench.lossless.outcome import CheckResult, Finding
from vcbench.lossless.thresholds import evaluate, parse_fail_on, samples_to_decide
from vcbench.metrics.interval import paired_margin
from vcbench.records.reader import Run, load_run
from vcbench.records.schema import BatchLine


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
        ("kv_factor<2.6", "pass"),
        ("kv_factor<2.7", "fail"),
        ("exact<0.1", "fail"),
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
        assert {finding.outcome for finding in findings} == {"pass"}
        assert result.outcome == "PASS"


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
    better = paired_margin(now, before, sign=1, tolerance=0.1)
    assert better is not None
    assert better[:2] == (3.0, 3.0)
    assert better[2].value == pytest.approx(0.3)
    less = paired_margin(now, before, sign=-1, tolerance=0.1)
    assert less is not None
    assert less[2].value == pytest.approx(0.3)
    assert paired_margin([], [], sign=1, tolerance=0.1) is None
    with pytest.raises(ValueError, match="1 values now for 2 before"):
        paired_margin(now[:1], before, sign=1, tolerance=0.1)


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
    assert (finding.outcome, finding.detail) == ("inconclusive", "the baseline has no such cell with these requests")


def test_other_settings_and_other_hardware_decide_nothing(tmp_path: Path) -> None:
    other = Sample()
    other.model = "other"
    (finding,) = against(tmp_path, other, Sample()).values()
    assert (finding.outcome, finding.detail) == ("inconclusive", "other settings than the baseline: model")
    now, before = (recorded(tmp_path / name, Sample()) for name in ("a", "b"))
    before.provenance["hardware"] = {"cpu": "another"}
    findings = compare_with_baseline(now, before, parse_fail_on("speedup<1,acceptance<1"))
    assert [finding.outcome for finding in findings] == ["inconclusive", "pass"]
    assert "other hardware (hardware.cpu)" in findings[0].detail


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
    assert all(not measure.samples(None, run.cells[0], "stdlib") for measure in MEASURES.values())
