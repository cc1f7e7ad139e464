"""Outputs of other engines: good ones pass, and whatever is wrong with a file is missing or not comparable."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.records.samples import Sample
from vcbench.errors import UsageError
from vcbench.lossless.check import check_run
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.pairs import check_files
from vcbench.lossless.result import Verdict

HEADER: dict[str, Any] = {
    "kind": "outputs",
    "schema": 1,
    "model": "some/model",
    "weights_sha256": "aa",
    "tokenizer": "bb",
    "vocab_size": 100,
    "dtype": "bfloat16",
    "max_tokens": 4,
    "stop_ids": [2],
    "stop_strings": [],
    "sampler": {"temperature": 0},
    "rope": "default",
}
Change = Callable[[list[dict[str, Any]]], Any]


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [
        {
            "kind": "output",
            "schema": 1,
            "request": f"r{number}",
            "prompt_ids": [5, 6, number],
            "output_ids": [10, 11, 12, 13 + number],
            "finish_reason": "length",
            "drafted": 6,
            "accepted": 4,
        }
        for number in range(count)
    ]


def write(path: Path, header: dict[str, Any], lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in [header, *lines]))
    return path


def check(tmp_path: Path, lines: list[dict[str, Any]], **header: Any) -> CheckResult:
    """A good file against one with changed lines or settings."""
    good = write(tmp_path / "a.jsonl", HEADER, rows())
    stated = {key: value for key, value in (HEADER | header).items() if value is not None}
    return check_files(good, write(tmp_path / "b.jsonl", stated, lines))


def changed(request: int, **values: Any) -> list[dict[str, Any]]:
    lines = rows()
    lines[request] |= values
    return lines


def test_equal_outputs_pass(tmp_path: Path) -> None:
    result = check(tmp_path, rows())
    assert (result.outcome, result.level, result.passed, result.n) == ("PASS", "up to near ties", 3, 3)
    assert [guard.name for guard in result.cells[0].guards] == ["drafts_proposed", "drafts_accepted", "drafts_rejected"]


def test_requests_may_come_in_any_order(tmp_path: Path) -> None:
    assert check(tmp_path, rows()[::-1]).outcome == "PASS"


def test_outputs_without_counters_say_so(tmp_path: Path) -> None:
    lines = [{key: value for key, value in row.items() if key not in ("drafted", "accepted")} for row in rows()]
    result = check(tmp_path, lines)
    assert result.outcome == "PASS"
    assert "no sign that the method was at work" in result.cells[0].notes[0]


@pytest.mark.parametrize(("drafted", "accepted"), [(0, 0), (6, 0), (6, 6)])
def test_idle_drafters_are_vacuous(tmp_path: Path, drafted: int, accepted: int) -> None:
    assert check(tmp_path, [row | {"drafted": drafted, "accepted": accepted} for row in rows()]).outcome == "VACUOUS"


def test_cache_states_are_held_against_their_hits(tmp_path: Path) -> None:
    def with_hits(hits: int) -> list[dict[str, Any]]:
        return [row | {"cached_tokens": hits} for row in rows()]

    assert check(tmp_path, with_hits(0), cache="cold").outcome == "PASS"
    assert check(tmp_path, with_hits(2), cache="cold").outcome == "VACUOUS"
    assert check(tmp_path, with_hits(2), cache="warm").outcome == "PASS"
    assert check(tmp_path, with_hits(0), cache="warm").outcome == "VACUOUS"
    assert check(tmp_path, rows(), cache="warm").outcome == "VACUOUS"


@pytest.mark.parametrize(
    ("values", "verdict", "detail"),
    [
        ({"output_ids": [10, 11, 9, 14]}, Verdict.INCONCLUSIVE, "token 2: a.jsonl has id 12, b.jsonl 9"),
        ({"output_ids": [10, 11, 12]}, Verdict.STOP_MISMATCH, "3 tokens, a.jsonl has 4"),
        ({"finish_reason": "stop"}, Verdict.STOP_MISMATCH, "b.jsonl by 'stop'"),
        ({"output_ids": [10, 2, 12, 14]}, Verdict.STOP_MISMATCH, "2 tokens after the stop id at token 1"),
        ({"output_ids": list(range(10, 19))}, Verdict.STOP_MISMATCH, "9 tokens, 4 were asked for at most"),
        ({"output_ids": []}, Verdict.MISSING, "no tokens"),
        ({"output_ids": [10, 11, 12, 100]}, Verdict.MISSING, "token id 100 is outside the vocabulary of 100"),
        ({"prompt_ids": [5, 6, 100]}, Verdict.NOT_COMPARABLE, "other prompts"),
        ({"prompt_ids": [5, 6, 7]}, Verdict.NOT_COMPARABLE, "other prompts"),
        ({"finish_reason": "error", "error": "out of memory"}, Verdict.MISSING, "out of memory"),
        ({"finish_reason": "done"}, Verdict.MISSING, "`finish_reason` must be one of stop, length, error"),
        ({"output_ids": [1.5]}, Verdict.MISSING, "`output_ids` must be a list of token ids"),
        ({"completion_tokens": 5}, Verdict.MISSING, "completion_tokens is 5 for 4 tokens"),
        ({"drafted": 1}, Verdict.MISSING, "4 accepted of 1 drafted tokens"),
        ({"extra": 1}, Verdict.MISSING, "unknown key `extra`"),
        ({"logprobs": [{"10": -0.1}]}, Verdict.MISSING, "1 steps of log-probabilities for 4 tokens"),
        ({"logprobs": [{"10": float("nan")}] * 4}, Verdict.MISSING, "token 10 at step 0 is nan"),
        ({"logprobs": [{"10": float("-inf")}] * 4}, Verdict.MISSING, "is -inf, which is no finite number"),
        ({"logprobs": [{"9": -0.1}] * 4}, Verdict.MISSING, "lacks the token 10 that was chosen"),
        ({"output_ids": [10, 11, 2, 14]}, Verdict.STOP_MISMATCH, "1 tokens after the stop id at token 2"),
        ({"logprobs": [{"10": 5.0}] * 4}, Verdict.MISSING, "token 10 at step 0 is 5.0: a probability above 1"),
        ({"logprobs": [{"10": 0.0, "9": 0.0}] * 4}, Verdict.MISSING, "the probabilities of step 0 sum to 2, which"),
        ({"logprobs": [{"10": -0.3, "9": -0.3, "8": -9.0}] * 4}, Verdict.MISSING, "step 0 sum to 1.482"),
        ({"logprobs": [{"10": -0.7, "010": -0.7}] * 4}, Verdict.MISSING, "step 0 names a token twice"),
        ({"logprobs": [{"10": True}] * 4}, Verdict.MISSING, "which is no finite number"),
        ({"logprobs": [{"10": 1e400}] * 4}, Verdict.MISSING, "which is no finite number"),
        ({"logprobs": [[-0.1]] * 4}, Verdict.MISSING, "must be an object of log-probabilities"),
    ],
)
def test_one_wrong_line_is_no_pass(tmp_path: Path, values: dict[str, Any], verdict: Verdict, detail: str) -> None:
    result = check(tmp_path, changed(1, **values))
    found = {v.request: v for v in result.verdicts}
    assert found["r1"].verdict is verdict
    assert detail in found["r1"].detail
    assert found["r0"].verdict is found["r2"].verdict is Verdict.IDENTICAL
    assert result.exit_code != 0


def test_a_missing_or_additional_request_is_missing(tmp_path: Path) -> None:
    for lines in (rows(2), rows(4)):
        result = check(tmp_path, lines)
        assert result.outcome == "FAIL"
        assert [v.verdict for v in result.verdicts].count(Verdict.MISSING) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", "other/model"),
        ("weights_sha256", "cc"),
        ("tokenizer", "dd"),
        ("vocab_size", 120),
        ("dtype", "float16"),
        ("stop_ids", [2, 3]),
        ("stop_strings", ["END"]),
        ("max_tokens", 9),
        ("sampler", {"temperature": 1, "seed": 3}),
        ("rope", "yarn"),
        ("rope", None),
    ],
)
def test_other_settings_are_not_comparable(tmp_path: Path, key: str, value: Any) -> None:
    result = check(tmp_path, rows(), **{key: value})
    assert (result.outcome, result.exit_code) == ("NOT_COMPARABLE", 3)
    assert len(result.differences) == 1
    assert result.differences[0].startswith(f"{key}: ")


def test_settings_that_neither_states_are_said(tmp_path: Path) -> None:
    header = {key: value for key, value in HEADER.items() if key not in ("weights_sha256", "rope")}
    a, b = (write(tmp_path / name, header, rows()) for name in ("a.jsonl", "b.jsonl"))
    result = check_files(a, b)
    assert result.outcome == "PASS"
    assert result.remarks == ("neither side states rope, weights_sha256, so nobody knows whether they agree",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"\x00\xff", "not a line of JSON"),
        (b"[1]\n", "a line must be a JSON object, found list"),
    ],
)
def test_files_that_hold_nothing(tmp_path: Path, content: bytes, problem: str) -> None:
    good = write(tmp_path / "a.jsonl", HEADER, rows())
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(content)
    for pair in ((good, bad), (bad, good)):
        result = check_files(*pair)
        assert result.exit_code in (1, 3)
        assert any(problem in text for text in result.problems)
    twin = tmp_path / "c.jsonl"
    twin.write_bytes(content)
    assert check_files(bad, twin).exit_code == 1


def test_cut_anywhere_a_file_never_passes(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", HEADER, rows())
    whole, bad = good.read_bytes(), tmp_path / "b.jsonl"
    for size in range(0, len(whole) - 1, 13):
        bad.write_bytes(whole[:size])
        assert check_files(good, bad).exit_code != 0, size


def test_a_count_of_requests_shows_that_both_files_were_cut(tmp_path: Path) -> None:
    header = HEADER | {"requests": 3}
    a, b = (write(tmp_path / name, header, rows(2)) for name in ("a.jsonl", "b.jsonl"))
    result = check_files(a, b)
    assert result.outcome == "FAIL"
    assert "2 requests, its first line says 3" in result.problems[0]


def test_duplicate_requests_name_both_lines(tmp_path: Path) -> None:
    result = check(tmp_path, [*rows(), rows()[1]])
    assert result.outcome == "FAIL"
    assert result.problems == ("b.jsonl, line 5: request 'r1' is that of line 3 already",)


def test_another_schema_version_is_not_comparable(tmp_path: Path) -> None:
    for lines, header in ((rows(), {"schema": 2}), (changed(0, schema=2), {})):
        result = check(tmp_path, lines, **header)
        assert result.outcome == "NOT_COMPARABLE"
        assert "schema version 2, this vcbench reads version 1" in result.differences[0]


def test_a_header_that_lacks_a_setting_never_passes(tmp_path: Path) -> None:
    result = check(tmp_path, rows(), dtype=None)
    assert result.exit_code == 3
    assert "`dtype` is missing" in result.problems[0]


TIED = [
    {"10": -0.1},
    {"11": -0.1},
    {"12": -0.7, "9": -0.7},
    {"13": -1.2, "14": -1.2, "15": -1.2},
]
HALF = -math.log(2)


def forked(tmp_path: Path, ids: list[int], logprobs: list[dict[str, float]]) -> CheckResult:
    """Request r1 of two files, whose output is [10, 11, 12, 14] in the first."""
    a = [row | {"logprobs": TIED} for row in rows()]
    b = [row | {"logprobs": TIED} for row in changed(1, output_ids=ids)]
    b[1]["logprobs"] = logprobs
    return check_files(write(tmp_path / "a.jsonl", HEADER, a), write(tmp_path / "b.jsonl", HEADER, b))


def test_an_exact_tie_passes_only_where_nothing_follows(tmp_path: Path) -> None:
    """What follows a fork has been judged by nobody, however good the reason for the fork."""
    last = forked(tmp_path, [10, 11, 12, 13], TIED)
    assert (last.outcome, last.ties) == ("PASS", 1)
    for ids in ([10, 11, 9, 14], [10, 11, 9, 77]):
        open_end = forked(tmp_path, ids, [*TIED[:3], {str(ids[3]): -0.1}])
        assert (open_end.outcome, open_end.exit_code, open_end.ties) == ("INCONCLUSIVE", 2, 0)
        assert "nobody has judged what follows (--audit MODEL)" in open_end.cells[0].verdicts[1].detail
    other = forked(tmp_path, [10, 11, 12, 13], [*TIED[:3], {"13": -1.2, "14": -1.3}])
    assert other.outcome == "INCONCLUSIVE"


@pytest.mark.parametrize("value", [5.0, 0.0, 1e-3, HALF + 0.1])
def test_impossible_probabilities_are_no_tie(tmp_path: Path, value: float) -> None:
    result = forked(tmp_path, [10, 11, 12, 13], [*TIED[:3], {"13": value, "14": value}])
    assert [v.verdict for v in result.verdicts].count(Verdict.MISSING) == 1
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("values", "header", "says"),
    [
        ({"output_ids": [10, 11, 12]}, {}, "it ends by 'length' at 3 of 4 tokens"),
        ({"output_ids": [10]}, {}, "it ends by 'length' at 1 of 4 tokens"),
        ({"output_ids": [10, 11, 12, 2]}, {}, "by 'length', but its last token is a stop id"),
        ({"finish_reason": "stop"}, {}, "by 'stop', but its last token, id 14, is no stop id"),
        ({"finish_reason": "stop"}, {"stop_ids": []}, "by 'stop', but its last token, id 14, is no stop id"),
        ({"finish_reason": "stop", "text": "no end"}, {"stop_strings": ["END"]}, "no stop string is in its text"),
        ({"output_ids": [10, 11, 12], "finish_reason": "length"}, {"max_tokens": 8}, "'length' at 3 of 8 tokens"),
    ],
)
def test_arms_that_contradict_themselves_alike_are_missing(
    tmp_path: Path, values: dict[str, Any], header: dict[str, Any], says: str
) -> None:
    a, b = (write(tmp_path / name, HEADER | header, changed(1, **values)) for name in ("a.jsonl", "b.jsonl"))
    result = check_files(a, b)
    found = {v.request: v for v in result.verdicts}
    assert found["r1"].verdict is Verdict.MISSING
    assert says in found["r1"].detail
    assert result.exit_code == 1


def test_ends_that_can_be(tmp_path: Path) -> None:
    ends = [
        {"output_ids": [10, 2], "finish_reason": "stop"},
        {"output_ids": [10, 11, 12, 2], "finish_reason": "stop"},
        {"output_ids": [10, 11, 12], "finish_reason": "stop", "text": "the END"},
        {"output_ids": [10, 11], "finish_reason": "stop"},
    ]
    for values in ends:
        header = HEADER | {"stop_strings": ["END"]}
        a, b = (write(tmp_path / name, header, changed(1, **values)) for name in ("a.jsonl", "b.jsonl"))
        assert check_files(a, b).outcome == "PASS"


def test_damaged_sources_of_two_runs_never_pass(tmp_path: Path) -> None:
    """What is wrong with the records as a whole counts, whichever of the two it is in."""
    good = Sample().write(tmp_path / "good")
    unfinished = Sample().write(tmp_path / "unfinished", finish=False)
    for pair in ((good, unfinished), (unfinished, good)):
        result = check_files(*pair)
        assert result.passed == result.n == 4
        assert (result.outcome, result.problems) == ("FAIL", ("unfinished is not complete",))
    with (good / "requests.jsonl").open("ab") as records:
        records.write(b'{"half')
    result = check_files(good, Sample().write(tmp_path / "other"))
    assert result.outcome == "FAIL"
    assert any("half written" in problem for problem in result.problems)


def test_the_bound_is_over_prompts(tmp_path: Path) -> None:
    """The same prompt under other names is no other sample."""
    lines = [row | {"prompt_ids": [5, 6, 7 if row["request"] == "r2" else 8]} for row in rows()]
    a, b = (write(tmp_path / name, HEADER, lines) for name in ("a.jsonl", "b.jsonl"))
    result = check_files(a, b)
    assert (result.n, result.prompts) == (3, 2)
    assert result.bound == pytest.approx(1 - 0.05 ** (1 / 2))


def test_a_file_is_not_compared_with_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", HEADER, rows())
    with pytest.raises(UsageError, match="given twice"):
        check_files(path, tmp_path / "." / "a.jsonl")


def test_runs_and_their_own_other_runs(tmp_path: Path) -> None:
    first = Sample().write(tmp_path / "first")
    second = Sample().write(tmp_path / "second")
    result = check_files(first, second)
    assert (result.outcome, result.n) == ("PASS", 4)
    other = Sample()
    other.model = "other"
    result = check_files(first, other.write(tmp_path / "other"))
    assert result.differences == ("model: 'tiny' in first: full, 'other' in other: vericache snapkv k=4",)


def test_two_runs_without_a_prompt_in_common(tmp_path: Path) -> None:
    first = Sample(names=("a", "b")).write(tmp_path / "first")
    second = Sample(names=("c", "d")).write(tmp_path / "second")
    result = check_files(first, second)
    assert result.outcome == "FAIL"
    assert {v.verdict for v in result.verdicts} == {Verdict.MISSING}


def test_a_run_of_another_schema_version_is_not_comparable(tmp_path: Path) -> None:
    path = Sample().write(tmp_path / "run")
    records = path / "requests.jsonl"
    records.write_bytes(records.read_bytes().replace(b'"schema":3', b'"schema":7'))
    result = check_run(path)
    assert (result.outcome, result.exit_code) == ("NOT_COMPARABLE", 3)
    assert "schema version 7, this vcbench reads 1, 2 and 3" in result.differences[0]
    result = check_files(Sample().write(tmp_path / "other"), path)
    assert result.exit_code == 3


def test_stated_log_probabilities_bound_the_divergence(tmp_path: Path) -> None:
    """Up to the first other token, that step included; nothing is said where only one side states them."""
    half = {"10": math.log(1 / 2), "11": math.log(1 / 2)}
    third = {"10": math.log(1 / 3), "11": math.log(2 / 3)}
    a = [row | {"logprobs": [half, half, {"12": -0.1}, {str(row["output_ids"][3]): -0.1}]} for row in rows()]
    b = [row | {"logprobs": [half, third, {"12": -0.1}, {str(row["output_ids"][3]): -0.1}]} for row in rows()]
    good = write(tmp_path / "a.jsonl", HEADER, a)
    notes = check_files(good, write(tmp_path / "b.jsonl", HEADER, b)).cells[0].notes
    assert notes == (
        "kl_topk: at least 0.0147 nats a step, at most 0.0589 of these in one "
        "(lower bounds from the stated log-probabilities, 12 steps)",
    )
    assert check_files(good, write(tmp_path / "c.jsonl", HEADER, rows())).cells[0].notes == ()
