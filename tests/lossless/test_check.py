"""The gate passes only what it should, and every way of fooling it turns it red, vacuous or not comparable."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.records.samples import FULL, LOSSY, NAMES, OUTPUT, VERI, Sample, kv
from vcbench.errors import RecordError
from vcbench.lossless.check import check_run, render
from vcbench.lossless.document import as_dict
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.pairs import check_files
from vcbench.lossless.result import Verdict
from vcbench.metrics.interval import upper_bound
from vcbench.metrics.summary import summarise
from vcbench.records.codec import plain
from vcbench.records.reader import load_run


def check(sample: Sample, path: Path, **options: Any) -> CheckResult:
    return check_run(sample.write(path / "run", **options))


def shown(result: CheckResult, width: int = 100) -> str:
    out = io.StringIO()
    render(result, Console(file=out, width=width))
    return out.getvalue()


def test_a_good_run_passes(tmp_path: Path) -> None:
    result = check(Sample(), tmp_path)
    assert (result.outcome, result.exit_code) == ("PASS", 0)
    assert (result.n, result.identical) == (4, 4)
    assert result.bound == pytest.approx(1 - 0.05**0.25)
    text = shown(result)
    assert "PASS: bitwise lossless: 4 of 4 requests" in text
    assert (
        "violation rate below 53 % at 95 % confidence (n = 4 independent prompts, 4 answers, 40 tokens equal)" in text
    )


def test_the_level_is_that_of_the_engine(tmp_path: Path) -> None:
    result = check(Sample(exactness="fast"), tmp_path)
    assert result.exit_code == 0
    assert "lossless up to near ties: 4 of 4 requests" in shown(result)
    assert "bitwise" not in shown(result)


@pytest.mark.parametrize(
    ("changes", "verdict", "detail"),
    [
        ({"token_ids": [*OUTPUT[:7], 1, 2, 3]}, Verdict.VIOLATION, "token 7: full KV has id 17, this cell 1"),
        ({"token_ids": [99, *OUTPUT[1:]]}, Verdict.VIOLATION, "token 0"),
        ({"finish_reason": "stop"}, Verdict.STOP_MISMATCH, "full KV ends by 'length' and this cell by 'stop'"),
        (
            {"token_ids": OUTPUT[:7], "committed": [5, 1], "drafted": [4, 4], "accepted": [4, 2]},
            Verdict.STOP_MISMATCH,
            "7 tokens, full KV has 10",
        ),
        (
            {"token_ids": [*OUTPUT, 5], "committed": [5, 3, 2], "drafted": [4, 4, 1], "accepted": [4, 2, 1]},
            Verdict.STOP_MISMATCH,
            "11 tokens, full KV has 10",
        ),
        ({"error": "NaN at step 3, layer 5", "finish_reason": "error"}, Verdict.MISSING, "NaN at step 3, layer 5"),
        ({"finish_reason": "error"}, Verdict.MISSING, "finish reason is error"),
        ({"token_ids": [], "committed": [], "drafted": [], "accepted": []}, Verdict.MISSING, "no tokens"),
        ({"committed": [5, 2, 1]}, Verdict.MISSING, "1 + 8 tokens committed over 3 rounds"),
    ],
)
def test_one_wrong_answer_fails_the_run(tmp_path: Path, changes: dict[str, Any], verdict: Verdict, detail: str) -> None:
    result = check(Sample().change(VERI, "two", **changes), tmp_path)
    found = {v.request: v for v in result.verdicts}
    assert found["two"].verdict is verdict
    assert detail in found["two"].detail
    assert all(found[name].verdict is Verdict.IDENTICAL for name in NAMES if name != "two")
    assert result.exit_code == 1
    text = shown(result)
    assert "FAIL: NOT bitwise lossless: 3 of 4 requests" in text
    assert f"{verdict} stdlib/two" in text


def test_a_truncated_answer_that_repeats_perfectly_is_still_a_stop_mismatch(tmp_path: Path) -> None:
    short = {"token_ids": OUTPUT[:6], "committed": [5], "drafted": [4], "accepted": [4], "finish_reason": "stop"}
    result = check(Sample().change(VERI, **short), tmp_path)
    assert {v.verdict for v in result.verdicts} == {Verdict.STOP_MISMATCH}


def test_logits_are_compared_where_both_were_hashed(tmp_path: Path) -> None:
    sample = Sample()
    assert check(sample, tmp_path / "same").exit_code == 0
    sample.change(VERI, "two", logits_sha256="b")
    result = check(sample, tmp_path / "other")
    assert [v.verdict for v in result.verdicts].count(Verdict.VIOLATION) == 1
    assert result.exit_code == 1
    sample.exactness = "fast"
    assert check(sample, tmp_path / "fast").exit_code == 0


@pytest.mark.parametrize(
    ("cells", "value", "says"),
    [
        ([VERI], "", "vericache snapkv k=4, one: no logits were hashed"),
        ([FULL], "", "full KV, one: no logits were hashed"),
        ([FULL, VERI], "", "full KV, one: no logits were hashed"),
        ([FULL, VERI], hashlib.sha256(b"").hexdigest(), "full KV, one: no logits were hashed"),
        ([FULL, VERI], "constant", "full KV, two: the hash of its logits is that of another prompt's"),
        ([FULL, VERI], "0" * 64, "full KV, two: the hash of its logits is that of another prompt's"),
    ],
)
def test_hashes_that_are_no_evidence(tmp_path: Path, cells: list[dict[str, Any]], value: str, says: str) -> None:
    """Equal because nothing, or always the same, was hashed."""
    sample = Sample()
    for cell in cells:
        sample.change(cell, logits_sha256=value)
    result = check(sample, tmp_path / "a")
    failed = {guard.name: guard.detail for cell in result.cells for guard in cell.vacuous}
    assert failed["logits_hashed"] == says
    assert result.exit_code in ((2,) if len(cells) == 2 or not value else (1,))
    sample.exactness = "fast"
    assert check(sample, tmp_path / "b").exit_code == 0


@pytest.mark.parametrize(
    ("cell", "changes", "says"),
    [
        (VERI, {"drafted": [], "accepted": [], "committed": []}, "1 + 0 tokens committed over 0 rounds, but 10"),
        (VERI, {"drafted": [4, 4], "accepted": [4, 2], "committed": [5, 3]}, "1 + 8 tokens committed over 2 rounds"),
        (VERI, {"drafted": [4, 4]}, "2 drafts, 3 acceptances and 3 commits are not one per round"),
        (VERI, {"accepted": [5, 1, 0]}, "round 1 cannot be: 4 drafted, 5 accepted"),
        (VERI, {"drafted": [5, 4, 0]}, "a round drafts 5 tokens, its cell at most 4"),
        (VERI, {"thinking_tokens": 11}, "11 tokens of thoughts, but 10 in the output"),
        (VERI, {"finish_reason": "done"}, "finish reason 'done' is none of stop, length"),
        (FULL, {"drafted": [4], "accepted": [4], "committed": [9]}, "rounds of a cell that does not draft"),
        (FULL, {"committed": [9]}, "rounds of a cell that does not draft"),
    ],
)
def test_identities_are_held_on_every_line_by_every_reader(
    tmp_path: Path, cell: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    path = Sample().change(cell, "two", **changes).write(tmp_path / "run")
    result = check_run(path)
    found = {v.request: v for v in result.verdicts}
    assert found["two"].verdict is Verdict.MISSING
    assert says in found["two"].detail
    assert result.exit_code == 1
    assert any(says in problem for row in summarise(load_run(path)) for problem in row.problems)
    other = check_files(Sample().write(tmp_path / "good"), path) if cell is VERI else None
    assert other is None or other.exit_code == 1


def test_the_bound_rests_on_prompts_and_not_on_cells(tmp_path: Path) -> None:
    """17 cells that answer the same prompts show no more of other prompts than one."""
    cells = [FULL, *(VERI | {"id": f"v{number}", "label": f"vericache {number}"} for number in range(17))]
    names = [f"r{number}" for number in range(16)]
    result = check(Sample(cells=cells, names=names), tmp_path / "a")
    assert (result.n, result.prompts, result.judged_cells) == (272, 16, 17)
    assert result.bound == pytest.approx(1 - 0.05 ** (1 / 16))
    text = shown(result, 200)
    assert (
        "violation rate below 17 % at 95 % confidence, in the weakest of 17 cells "
        "(n = 16 independent prompts, 272 answers, 2,720 tokens equal)" in text
    )
    document = as_dict(result)
    assert (document["prompts"], document["violation_rate_upper_95"]) == (16, result.bound)
    wrong = Sample(cells=cells, names=names).change(cells[3], "r5", token_ids=[99, *OUTPUT[1:]])
    worse = check(wrong, tmp_path / "b")
    assert worse.bound == pytest.approx(upper_bound(1, 16))


@pytest.mark.parametrize("cell", [FULL, VERI])
def test_missing_results(tmp_path: Path, cell: dict[str, Any]) -> None:
    result = check(Sample().drop(cell, "three"), tmp_path)
    assert {v.request: v.verdict for v in result.verdicts}["three"] is Verdict.MISSING
    assert result.exit_code == 1


def test_a_failed_baseline_is_no_pass(tmp_path: Path) -> None:
    result = check(Sample().change(FULL, "one", error="x", finish_reason="error"), tmp_path)
    assert result.verdicts[0].verdict is Verdict.MISSING
    assert result.exit_code == 1


def test_another_prompt_is_not_comparable(tmp_path: Path) -> None:
    for number, sample in enumerate(
        [Sample().change(VERI, "two", prompt_sha256="0"), Sample().change(FULL, "two", prompt_sha256="0")]
    ):
        result = check(sample, tmp_path / str(number))
        assert (result.outcome, result.exit_code) == ("NOT_COMPARABLE", 3)
    sample = Sample()
    sample.prompts[0] = replace(sample.prompts[0], prompt_ids=[1])
    assert check(sample, tmp_path / "forged").exit_code == 3


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (Sample(cells=[FULL, LOSSY]), "no VeriCache request is in the run"),
        (Sample(names=()), "no VeriCache request is in the run"),
        (Sample().change(VERI, drafted=[0] * 9, accepted=[0] * 9, committed=[1] * 9), "drafts_proposed: 0 tokens"),
        (Sample().change(VERI, drafted=[4] * 9, accepted=[0] * 9, committed=[1] * 9), "drafts_accepted: 0 of 144"),
        (Sample().change(VERI, kv_end=kv(1200, 1200)), "smaller_cache: 4,800 of 4,800 bytes"),
        (Sample().change(VERI, kv_end=kv(1300, 1200)), "smaller_cache: 5,200 of 4,800 bytes"),
        (Sample().change(VERI, "one", kv_end=None), "smaller_cache: the bytes of a cache were not recorded"),
        (Sample().change(VERI, "one", cache_classes={"SnapKVCache": 1, "FullCache": 1}), "the full cache stood in"),
        (Sample().change(VERI, cache_classes={}), "cache_class: no cache class was recorded for one, two, three"),
        (Sample().change(LOSSY, cache_classes={"FullCache": 2}), "lossy snapkv (stdlib): cache_class: FullCache"),
    ],
)
def test_equal_outputs_that_show_nothing(tmp_path: Path, sample: Sample, says: str) -> None:
    result = check(sample, tmp_path)
    assert result.identical == result.n
    assert (result.outcome, result.exit_code) == ("VACUOUS", 2)
    assert says in shown(result, 200)
    assert "lossless:" not in shown(result, 200).replace("lossless gate:", "")


def test_the_cache_class_is_the_compressors_own(tmp_path: Path) -> None:
    told = VERI | {"cache_class": "SnapKVCache"}
    assert check(Sample(cells=[FULL, told]), tmp_path / "a").exit_code == 0
    result = check(Sample(cells=[FULL, told]).change(told, "two", cache_classes={"OtherCache": 2}), tmp_path / "b")
    assert result.exit_code == 2
    assert "OtherCache, SnapKVCache: compressor 'snapkv' makes a SnapKVCache" in shown(result, 200)


def test_controls(tmp_path: Path) -> None:
    none = VERI | {"compressor": "none", "method": "none"}
    whole = {"kv_end": kv(1200, 1200), "cache_classes": {"FullCache": 2}}
    accepting = Sample(cells=[FULL, none]).change(none, drafted=[4, 3], accepted=[4, 3], committed=[5, 4], **whole)
    assert check(accepting, tmp_path / "a").exit_code == 0
    rejecting = Sample(cells=[FULL, none]).change(none, drafted=[4, 4], accepted=[4, 3], committed=[5, 4], **whole)
    result = check(rejecting, tmp_path / "b")
    assert result.exit_code == 2
    assert "all_accepted: 4 of 8 rounds" in shown(result, 200)
    noise = VERI | {"compressor": "random", "method": "random"}
    useless = {"drafted": [4] * 9, "accepted": [0] * 9, "committed": [1] * 9, "kv_end": kv(1200, 1200)}
    assert check(Sample(cells=[FULL, noise]).change(noise, **useless), tmp_path / "c").exit_code == 0


def test_never_rejected_shows_nothing_about_rolling_back(tmp_path: Path) -> None:
    result = check(Sample().change(VERI, drafted=[4, 3], accepted=[4, 3], committed=[5, 4]), tmp_path)
    assert result.outcome == "VACUOUS"
    text = shown(result, 400)
    assert "drafts_rejected: 0 of 8 rounds reject a draft, so rolling back was never put to the test" in text
    assert "check more or longer requests, raise draft_length, or draw tokens" in text


def test_a_full_cache_lay_where_it_was_asked_for(tmp_path: Path) -> None:
    told = VERI | {"full_cache": "disk"}

    def held(**copy: int) -> Sample:
        return Sample(cells=[FULL, told]).change(told, kv_end=kv(450, 1200) | {"full_copy": copy, "reread": 1})

    assert check(held(memory=400, disk=1200), tmp_path / "a").exit_code == 0
    for number, sample in enumerate((held(memory=1200), held(disk=1199), Sample(cells=[FULL, told]))):
        result = check(sample, tmp_path / str(number))
        assert (result.outcome, result.exit_code) == ("VACUOUS", 2)
        assert "full_cache_tier: " in shown(result, 200)


def test_a_full_cache_that_never_left_its_buffers_shows_nothing_of_the_disk(tmp_path: Path) -> None:
    told = VERI | {"full_cache": "disk"}
    for number, reread in enumerate((0, None)):
        end = kv(450, 1200) | {"full_copy": {"disk": 1200}, "reread": 5}
        sample = Sample(cells=[FULL, told]).change(told, kv_end=end)
        assert check(sample, tmp_path / f"good-{number}").exit_code == 0
        end = {key: value for key, value in end.items() if key != "reread"} | ({} if reread is None else {"reread": 0})
        result = check(sample.change(told, "two", kv_end=end), tmp_path / str(number))
        assert (result.outcome, result.exit_code) == ("VACUOUS", 2)
        failed = {guard.name: guard.detail for cell in result.cells for guard in cell.vacuous}
        assert failed == {"full_cache_read_back": "nothing of two was read back from disk: it stayed in its buffers"}


def test_incomplete_truncated_and_empty_records_never_pass(tmp_path: Path) -> None:
    result = check(Sample(), tmp_path / "unfinished", finish=False)
    assert result.identical == result.n == 4
    assert result.exit_code == 1
    assert "the run is not complete" in shown(result)
    stopped = check(Sample().drop(FULL, "two"), tmp_path / "stopped", finish=False)
    assert (stopped.passed, stopped.n) == (3, 4)
    assert "FAIL: not shown to be bitwise lossless: 3 of 4 requests identical to full KV, but" in shown(stopped)
    path = Sample().write(tmp_path / "run")
    records = path / "requests.jsonl"
    whole = records.read_bytes()
    for size in [0, 1, *range(50, len(whole), 97), len(whole) - 1]:
        records.write_bytes(whole[:size])
        cut = check_run(path)
        assert cut.exit_code == 1, size
        assert "is not what it was when the run ended" in shown(cut, 300)
    records.unlink()
    assert check_run(path).exit_code == 1
    (path / "provenance.json").unlink()
    with pytest.raises(RecordError, match=r"provenance.json is missing"):
        check_run(path)


def test_records_of_another_cell_are_refused(tmp_path: Path) -> None:
    sample = Sample()
    sample.requests[0] = replace(sample.requests[0], cell="other")
    with pytest.raises(RecordError, match="cell 'other' is not among the cells"):
        check(sample, tmp_path)


def test_json(tmp_path: Path) -> None:
    result = check(Sample().change(VERI, "two", token_ids=[*OUTPUT[:7], 1, 2, 3]), tmp_path)
    document = json.loads(json.dumps(plain(as_dict(result)), allow_nan=False))
    assert (document["schema"], document["outcome"], document["exit_code"]) == (2, "FAIL", 1)
    veri = next(cell for cell in document["cells"] if cell["id"] == VERI["id"])
    assert veri["counts"] == {"IDENTICAL": 3, "VIOLATION": 1}
    assert veri["requests"][1] == {
        "request": "two",
        "verdict": "VIOLATION",
        "step": 7,
        "tokens": 7,
        "shortfall_steps": None,
        "detail": "token 7: full KV has id 17, this cell 1",
    }
    assert all(guard["passed"] for guard in veri["guards"])


def test_many_failures_are_cut_short_and_safe_to_print(tmp_path: Path) -> None:
    names = [f"r{number}\x1b[2J" for number in range(30)]
    sample = Sample(names=names).change(VERI, error="bad \x1b[31m [red]", finish_reason="error")
    text = shown(check(sample, tmp_path), 200)
    assert "and 20 more" in text
    assert "\x1b" not in text
    assert r"bad \x1b[31m [red]" in text
