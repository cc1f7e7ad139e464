"""Faults that were reported for other projects, tried on the gate: each is found, and the sound engine passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.engine.decoding.scripted import (
    ScriptedCompressor,
    ScriptedDecoder,
    accepting,
    continuation,
    faithful,
    prefilled,
)
from tests.lossless.conftest import TinyRuns
from tests.lossless.test_outputs import HEADER, rows, write
from tests.records.samples import VERI, Sample, prompt
from vcbench.engine.decoding.session import CellSetup
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Generation, Request
from vcbench.errors import RecordError
from vcbench.forensics.faulty import Engine
from vcbench.lossless.answers import Answer, Arm, prompt_sha256
from vcbench.lossless.check import check_loaded, check_run
from vcbench.lossless.document import as_dict
from vcbench.lossless.pairs import check_files
from vcbench.lossless.result import RequestVerdict, Verdict
from vcbench.lossless.verdicts import judge

PROMPT = (5, 9, 4)
OUTPUT = continuation(PROMPT, 40)


def decode(
    request: Request, *, draft_length: int = 0, fault: str | None = None, draft: Any = faithful, verify: Any = faithful
) -> Generation:
    """A scripted request by the engine, full KV unless something is drafted."""
    ended: list[Generation] = []
    compressor = ScriptedCompressor(draft) if draft_length else None
    setup = CellSetup(arm="vericache" if draft_length else "full", compressor=compressor, draft_length=draft_length)
    Engine(fault)(cast(Decoder, ScriptedDecoder()), setup, [prefilled(request, verify)], on_end=ended.append)
    return ended[0]


def arm(name: str, request: Request, generation: Generation) -> Arm:
    answer = Answer(
        request="r",
        prompt_ids=request.prompt_ids,
        prompt_sha256=prompt_sha256(request.prompt_ids),
        token_ids=generation.token_ids,
        finish_reason=generation.finish_reason,
        problem=generation.error or "",
        logits_sha256=generation.logits_sha256,
    )
    stated = {"stop_ids": sorted(request.stop_ids), "max_tokens": request.max_tokens}
    return Arm(name=name, settings=stated, answers={"r": answer})


def gate(request: Request, ours: Generation) -> RequestVerdict:
    return judge("", "r", arm("full", request, decode(request)), arm("ours", request, ours), bitwise=True)


def asked(max_tokens: int = 40, *stops: int) -> Request:
    return Request(id="r", prompt_ids=PROMPT, max_tokens=max_tokens, stop_ids=frozenset(stops))


@pytest.mark.parametrize("place", [0, 7, 8])
@pytest.mark.parametrize("draft_length", range(1, 9))
def test_a_stop_in_the_middle_of_a_draft(place: int, draft_length: int) -> None:
    """Of a perfect drafter, at every offset of a block, as first token and as bonus; one and two stop ids."""
    for stops in ((OUTPUT[place],), (OUTPUT[place], OUTPUT[place + 2])):
        request = asked(40, *stops)
        sound = decode(request, draft_length=draft_length)
        assert gate(request, sound).verdict is Verdict.IDENTICAL
        assert len(sound.token_ids) == place + 1
        broken = decode(request, draft_length=draft_length, fault="eos_only_checked_at_block_end")
        ends_a_block = place % (draft_length + 1) == 0
        assert gate(request, broken).verdict is (Verdict.IDENTICAL if ends_a_block else Verdict.STOP_MISMATCH)


def test_a_counter_that_goes_on_past_the_stop(tmp_path: Path) -> None:
    """[d1, d2, stop, d4, d5, bonus] counted as six tokens where three were committed."""
    sample = Sample().change(
        VERI, "two", token_ids=[10, 11, 12, 13], drafted=[5], accepted=[5], committed=[6], finish_reason="stop"
    )
    found = {v.request: v for v in check_run(sample.write(tmp_path / "run")).verdicts}["two"]
    assert found.verdict is Verdict.MISSING
    assert "1 + 6 tokens committed over 1 rounds, but 4 in the output" in found.detail


@pytest.mark.parametrize("cap", range(1, 11))
def test_a_cap_inside_a_draft(cap: int) -> None:
    """k = 4, max_tokens from 1 to 2 k + 2; a stop before the cap, at it and after it."""
    for stop in (None, cap - 2, cap - 1, cap, cap + 1):
        request = asked(cap, *([OUTPUT[stop]] if stop is not None and stop >= 0 else []))
        sound = decode(request, draft_length=4)
        assert gate(request, sound).verdict is Verdict.IDENTICAL
        stops_first = stop is not None and 0 <= stop < cap
        assert len(sound.token_ids) == (stop + 1 if stops_first and stop is not None else cap)
        assert sound.finish_reason == ("stop" if stops_first else "length")


def test_a_stop_that_the_cap_hides() -> None:
    """Output [10, 11, STOP, 20, 21] with a cap of 5, truncated before stops were looked for."""
    request = asked(5, OUTPUT[2])
    broken = decode(request, draft_length=4, fault="cap_before_stop")
    assert len(broken.token_ids) == 5
    found = gate(request, broken)
    assert found.verdict is Verdict.STOP_MISMATCH
    assert "2 tokens after the stop id at token 2" in found.detail


def test_too_many_and_too_few_tokens() -> None:
    request = asked(5)
    sound = decode(request, draft_length=3)
    for ids in (OUTPUT[:4], OUTPUT[:6]):
        sound.token_ids = list(ids)
        assert gate(request, sound).verdict is Verdict.STOP_MISMATCH


def nan_at(position: int) -> Any:
    return lambda drafted, at, token: None if at >= position else token


def test_logits_that_are_not_a_number() -> None:
    """In a draft they are a rejection; in verification the request fails with step and layer; never an accepted one."""
    request = asked(20)
    assert gate(request, decode(request, draft_length=4, draft=nan_at(9))).verdict is Verdict.IDENTICAL
    failed = decode(request, draft_length=4, verify=nan_at(12))
    found = gate(request, failed)
    assert found.verdict is Verdict.MISSING
    assert "logits are not finite at step 9" in found.detail
    accepted = decode(request, draft_length=4, draft=accepting(1), fault="nan_accepts_all")
    assert gate(request, accepted).verdict is Verdict.VIOLATION


def test_ids_outside_the_vocabulary_are_no_answer(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", HEADER, rows())
    for token in (100, -1):
        lines = rows()
        lines[0]["output_ids"] = [10, token]
        found = check_files(good, write(tmp_path / "b.jsonl", HEADER, lines))
        assert found.verdicts[0].verdict is Verdict.MISSING


def test_json_of_a_failed_request_holds_no_bare_nan(tmp_path: Path) -> None:
    lines = rows()
    lines[1]["logprobs"] = [{"10": float("nan")}] * 4
    a, b = write(tmp_path / "a.jsonl", HEADER, rows()), write(tmp_path / "b.jsonl", HEADER, lines)
    json.loads(json.dumps(as_dict(check_files(a, b)), allow_nan=False))


def test_a_request_that_is_recorded_twice(tmp_path: Path) -> None:
    path = Sample().write(tmp_path / "run")
    records = path / "requests.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    number = next(index for index, line in enumerate(lines) if b'"kind":"request"' in line)
    records.write_bytes(b"".join([*lines, lines[number]]))
    with pytest.raises(RecordError, match=rf"lines {number + 1} and {len(lines) + 1}: both are for"):
        check_run(path)


def test_the_same_prompt_under_two_ids_stays_two_requests(tmp_path: Path) -> None:
    lines = [rows()[0], rows()[0] | {"request": "again"}]
    a, b = (write(tmp_path / name, HEADER, lines) for name in ("a.jsonl", "b.jsonl"))
    assert check_files(a, b).n == 2
    swapped = [lines[0] | {"output_ids": [10, 11, 12, 77]}, lines[1]]
    found = check_files(a, write(tmp_path / "c.jsonl", HEADER, swapped))
    assert [verdict.verdict for verdict in found.verdicts] == [Verdict.INCONCLUSIVE, Verdict.IDENTICAL]


def test_records_of_another_model(tmp_path: Path, tiny_runs: TinyRuns) -> None:
    """Under their own name they do not compare; under a false one their tokens give them away."""
    first, other = Sample(), Sample()
    other.model = "another"
    result = check_files(first.write(tmp_path / "a"), other.write(tmp_path / "b"))
    assert (result.outcome, result.exit_code) == ("NOT_COMPARABLE", 3)
    assert check_loaded(tiny_runs("wrong_model_records")).exit_code == 1


def test_answers_to_another_version_of_a_prompt(tmp_path: Path) -> None:
    other = Sample()
    other.prompts[1] = prompt("two", (9, 9))
    for cell in other.cells:
        other.change(cell, "two", prompt_sha256=other.prompts[1].prompt_sha256)
    result = check_files(Sample().write(tmp_path / "a"), other.write(tmp_path / "b"))
    assert {v.request: v.verdict for v in result.verdicts}["two"] is Verdict.NOT_COMPARABLE
    assert result.exit_code == 3


def test_empty_and_cut_records_are_missing(tmp_path: Path) -> None:
    path = Sample().write(tmp_path / "run")
    (path / "requests.jsonl").write_bytes(b"")
    assert check_run(path).exit_code == 1
    assert check_files(path, Sample().write(tmp_path / "whole")).exit_code == 1
