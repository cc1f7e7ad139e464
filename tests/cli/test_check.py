"""`vcbench check` from the command line: what it takes, what it writes, and its exit codes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.lossless.test_outputs import HEADER, rows, write
from tests.records.samples import OUTPUT, VERI, Sample
from vcbench.cli.main import app, main


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Sample().write(tmp_path / "runs" / "good")
    Sample().change(VERI, "two", token_ids=[*OUTPUT[:7], 1, 2, 3]).write(tmp_path / "runs" / "bad")
    write(tmp_path / "a.jsonl", HEADER, rows())
    write(tmp_path / "b.jsonl", HEADER | {"dtype": "float16"}, rows())
    return tmp_path


def invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def code_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The process's own exit code, errors included."""
    monkeypatch.setattr("sys.argv", ["vcbench", *words])
    return main()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("good",), 0),
        (("runs/good",), 0),
        (("bad",), 1),
        (("bad", "--request", "one"), 0),
        (("bad", "--request", "one", "--request", "two"), 1),
        (("bad", "--cell", "vericache snapkv k=4"), 1),
        (("good", "--cell", "vericache snapkv k=4"), 0),
        (("good", "--fail-on", "acceptance<3.1"), 1),
        (("good", "--fail-on", "violations>0,acceptance<2"), 0),
        (("good", "--baseline", "bad"), 0),
        (("a.jsonl", "b.jsonl"), 3),
        (("runs/good", "runs/bad"), 2),
    ],
)
@pytest.mark.usefixtures("place")
def test_exit_codes(words: tuple[str, ...], code: int) -> None:
    assert invoke("check", *words)[0] == code


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nothing",), "no run 'nothing'"),
        (("a.jsonl", "a.jsonl"), "given twice"),
        (("a.jsonl", "nothing.jsonl"), "no run 'nothing.jsonl'"),
        (("good", "bad", "good"), "3 things to check"),
        (("good", "--fail-on", "acceptance"), "is not <metric>"),
        (("good", "--baseline", "nothing"), "no run 'nothing'"),
        (("good", "--baseline", "good"), "is the run itself"),
        (("good", "--baseline", "bad", "--tolerance", "2"), "--tolerance is 2"),
        (("a.jsonl", "b.jsonl", "--baseline", "good"), "have no timing"),
        (("a.jsonl", "b.jsonl", "--controls"), "--controls decodes a run of vcbench again"),
        (("good", "--inject-fault", "nan_accepts_all"), "--inject-fault needs a configuration"),
        (("good", "--cell", "nothing"), "no cell 'nothing'"),
        (("good", "--request", "tow"), "no request 'tow'; did you mean 'two'"),
        (("a.jsonl", "b.jsonl", "--request", "r9"), "no request 'r9'"),
        (("good", "--set", "seed=1"), "--set needs a configuration"),
        (("tiny", "--set", "seed=1"), "--set has no effect"),
        (("tiny", "--inject-fault", "nonsense"), "unknown fault 'nonsense'"),
        (("missing.yaml",), "cannot be read"),
        (("good", "--junit", "no/such/place.xml"), "cannot be written"),
        (("good", "--nonsense"), "No such option"),
    ],
)
@pytest.mark.usefixtures("place")
def test_usage_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert code_of(monkeypatch, "check", *words) == 64
    assert says in " ".join(capsys.readouterr().err.split())


def test_every_report_at_once(place: Path) -> None:
    code, out, err = invoke("check", "bad", "--json", "--junit", "j.xml", "--markdown", "m.md", "--html", "h.html")
    assert code == 1
    assert json.loads(out)["outcome"] == "FAIL"
    assert ET.parse(place / "j.xml").getroot().findall(".//failure")
    assert (place / "m.md").read_text().startswith("### Lossless gate: FAIL")
    assert (place / "h.html").read_text().startswith("<!doctype html>")
    assert [line for line in err.splitlines() if line.startswith("wrote ")] == [
        "wrote j.xml", "wrote m.md", "wrote h.html",
    ]  # fmt: skip


def test_records_that_cannot_be_read_are_no_pass_and_have_a_report(place: Path) -> None:
    records = place / "runs" / "good" / "requests.jsonl"
    records.write_bytes(b"{broken}\n" + records.read_bytes())
    code, out, _ = invoke("check", "good", "--junit", "j.xml")
    assert code == 1
    assert "not a line of JSON" in out
    assert ET.parse(place / "j.xml").getroot().findall(".//error")
    assert invoke("check", "good", "--fail-on", "violations>0", "--baseline", "bad")[0] == 1


def test_help_lists_the_exit_codes() -> None:
    _, out, _ = invoke("check", "--help")
    assert "0 pass, 1 violation, 2 inconclusive or vacuous, 3 not comparable, 64 usage, 70 internal error" in " ".join(
        out.replace("│", " ").split()
    )


def test_the_demo_passes_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    code, out, err = invoke("demo")
    assert code == 0
    assert out.index("PASS: bitwise lossless: 8 of 8 requests") < out.index("FAIL: NOT bitwise lossless")
    assert "cause: draft-verify logic" in out
    assert "Expected: PASS, then FAIL." in err


def test_a_configuration_is_run_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    assert invoke("check", "tiny")[0] == 0
    config = Path("runs/tiny/config.yaml")
    again = Path("again.yaml")
    again.write_text(config.read_text().replace("name: tiny", "name: again"))
    code, out, _ = invoke("check", "again.yaml", "--set", "tasks.0.limit=3")
    assert (code, "55 of 55 requests" in out) == (0, True)
    code, out, _ = invoke("check", "again.yaml", "--inject-fault", "compressed_cache_in_verify")
    assert code == 1
    assert Path("runs/again-compressed_cache_in_verify/manifest.json").is_file()
    assert invoke("check", "runs/again", "runs/tiny")[0] == 1, "only three of the requests are in both"
