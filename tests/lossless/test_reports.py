"""JSON, JUnit XML, Markdown and HTML: complete, escaped, and never green for what is no pass."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.records.samples import OUTPUT, VERI, Sample
from vcbench.lossless.answers import Answer
from vcbench.lossless.cards import Card, Position, Side, card_lines, position_of
from vcbench.lossless.check import check_run
from vcbench.lossless.document import as_dict
from vcbench.lossless.html import html
from vcbench.lossless.junit import junit_xml
from vcbench.lossless.markdown import LIMIT, markdown
from vcbench.lossless.outcome import CheckResult, Finding
from vcbench.lossless.population import survival
from vcbench.lossless.result import RequestVerdict, Verdict

NASTY = "a\x1b[2J<script>alert(1)</script>&\"'`|\ud83d\u202e\x00]]>\ufffe"


def result_of(sample: Sample, path: Path) -> CheckResult:
    return check_run(sample.write(path / "run"))


def forked(path: Path) -> CheckResult:
    return result_of(Sample().change(VERI, "two", token_ids=[*OUTPUT[:7], 1, 2, 3]), path)


def nasty(path: Path) -> CheckResult:
    """Control characters, markup and surrogates wherever text can come from."""
    good = forked(path)
    side = Side(name=NASTY, token=1, text=NASTY, before=NASTY, after=NASTY, note=NASTY)
    card = Card(
        cell=NASTY, task=NASTY, request=NASTY, verdict=NASTY, detail=NASTY, position=Position(step=1, place="unknown"),
        reference=side, method=side, replay=NASTY,
    )  # fmt: skip
    verdict = RequestVerdict(task=NASTY, request=NASTY, verdict=Verdict.MISSING, detail=NASTY)
    return replace(
        good,
        run=NASTY,
        cells=(replace(good.cells[1], verdicts=(verdict,), notes=(NASTY,)),),
        problems=(NASTY,),
        differences=(NASTY,),
        remarks=(NASTY,),
        findings=(Finding(rule=NASTY, cell=NASTY, outcome="fail", detail=NASTY),),
        cards=(card,),
        fault=NASTY,
    )


class Tags(HTMLParser):
    """Counts the tags and collects what is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href")]


def is_plain(text: str) -> bool:
    """Whether the text can be written as UTF-8 and moves no cursor."""
    text.encode("utf-8")
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e\ufeff]", text)


def test_json_has_everything(tmp_path: Path) -> None:
    document = json.loads(json.dumps(as_dict(forked(tmp_path)), allow_nan=False))
    assert document["schema"] == 2
    assert document["survival"] == [{"step": 7, "at_risk": 4, "forked": 1, "surviving": 0.75}]
    (card,) = document["cards"]
    assert card["position"] == {
        "step": 7, "place": "accepted", "round": 2, "offset": 2, "drafted": 4, "accepted": 2, "committed": 3,
        "draft_width": 1, "verify_width": 5, "reference_width": 1,
    }  # fmt: skip
    assert (card["reference"]["token"], card["method"]["token"]) == (17, 1)
    assert card["replay"].endswith("--request two --cell 'vericache snapkv k=4' --controls")


def test_json_of_anything_is_valid(tmp_path: Path) -> None:
    assert is_plain(json.dumps(as_dict(nasty(tmp_path)), allow_nan=False))


def test_junit_is_green_only_for_a_pass(tmp_path: Path) -> None:
    root = ET.fromstring(junit_xml(result_of(Sample(), tmp_path)))
    assert not root.findall(".//failure")
    assert not root.findall(".//error")
    suites = {suite.get("name"): suite for suite in root}
    assert suites["vericache snapkv k=4 (stdlib)"].get("tests") == str(4 + 6)
    bad = ET.fromstring(junit_xml(forked(tmp_path / "bad")))
    kinds = [failure.get("type") for failure in bad.findall(".//failure")]
    assert kinds == ["VIOLATION", "FAIL"]
    assert {suite.get("failures") for suite in bad} == {"0", "1"}


@pytest.mark.parametrize(
    "change",
    [
        {"problems": ("half a file",)},
        {"differences": ("dtype",)},
        {"findings": (Finding(rule="kl>1", cell="c", outcome="inconclusive", detail="d"),)},
        {"cells": ()},
    ],
)
def test_junit_is_never_green_otherwise(tmp_path: Path, change: dict[str, Any]) -> None:
    result = replace(result_of(Sample(), tmp_path), **change)
    assert result.exit_code != 0
    root = ET.fromstring(junit_xml(result))
    assert root.findall(".//failure") + root.findall(".//error")


def test_junit_of_anything_can_be_parsed(tmp_path: Path) -> None:
    text = junit_xml(nasty(tmp_path))
    assert is_plain(text)
    assert ET.fromstring(text).findall(".//error")


def test_markdown_names_level_and_reasons(tmp_path: Path) -> None:
    text = markdown(forked(tmp_path))
    assert text.startswith("### Lossless gate: FAIL\n")
    assert "Level: *bitwise*" in text
    assert "| vericache snapkv k=4 (stdlib) | 3 | 1 | 6 of 6 |" in text
    assert "<details>" in text


def test_markdown_has_no_markup_of_others(tmp_path: Path) -> None:
    text = markdown(nasty(tmp_path))
    assert is_plain(text)
    outside = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "<script>" not in outside
    assert "&#60;script&#62;alert(1)&#60;/script&#62;&#38;" in outside
    assert set(re.findall(r"<(/?\w+)", outside)) == {"details", "/details", "summary", "/summary"}


def test_markdown_fits_a_comment(tmp_path: Path) -> None:
    names = [f"request-{number}-{'x' * 120}" for number in range(60)]
    result = result_of(Sample(names=names).change(VERI, token_ids=[*OUTPUT[:7], 1, 2, 3]), tmp_path)
    assert len(markdown(result)) <= LIMIT
    long = replace(result, problems=tuple("y" * 30_000 for _ in range(5)))
    assert len(markdown(long)) <= LIMIT
    assert "Cut here" in markdown(long)


def test_html_stands_alone(tmp_path: Path) -> None:
    page = html(forked(tmp_path))
    parser = Tags()
    parser.feed(page)
    assert parser.loaded == []
    assert parser.tags.count("article") == 1
    assert "VIOLATION" in page
    assert "polyline" in page
    assert "script" not in parser.tags


def test_html_escapes_everything(tmp_path: Path) -> None:
    page = html(nasty(tmp_path))
    assert is_plain(page)
    parser = Tags()
    parser.feed(page)
    assert "script" not in parser.tags
    assert "<script>" not in page


def test_card_lines_are_safe(tmp_path: Path) -> None:
    (card,) = nasty(tmp_path).cards
    assert all(is_plain(line) for line in card_lines(card))


def verdict(step: int | None, tokens: int) -> RequestVerdict:
    kind = Verdict.IDENTICAL if step is None else Verdict.VIOLATION
    return RequestVerdict(task="", request="r", verdict=kind, step=step, tokens=tokens)


def test_survival_by_hand() -> None:
    curve = survival([verdict(None, 2), verdict(None, 10), verdict(3, 3), verdict(5, 5), verdict(5, 5)])
    assert [(point.step, point.at_risk, point.forked) for point in curve] == [(3, 4, 1), (5, 3, 2)]
    assert [point.surviving for point in curve] == pytest.approx([3 / 4, 1 / 4])
    assert survival([verdict(None, 4)]) == []
    assert survival([RequestVerdict(task="", request="r", verdict=Verdict.MISSING)]) == []


@pytest.mark.parametrize(
    ("step", "place", "number", "offset"),
    [
        (0, "prefill", None, None),
        (1, "accepted", 1, 1),
        (4, "accepted", 1, 4),
        (5, "bonus", 1, 5),
        (6, "accepted", 2, 1),
        (8, "rejected", 2, 3),
        (9, "bonus", 3, 1),
        (10, "unknown", None, None),
    ],
)
def test_places_in_rounds(step: int, place: str, number: int | None, offset: int | None) -> None:
    answer = Answer(
        request="r", prompt_ids=[1], prompt_sha256="", drafted=[4, 4, 0], accepted=[4, 2, 0], committed=[5, 3, 1]
    )
    found = position_of(answer, step)
    assert (found.place, found.round, found.offset) == (place, number, offset)
    assert (
        position_of(replace(answer, drafted=(), accepted=(), committed=(), logits_sha256="x"), step).place
        == "one by one"
    )
