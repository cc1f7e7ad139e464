"""`vcbench score` on a small recorded run: tables, data, groups, exports and exit codes."""

from __future__ import annotations

import csv
import errno
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.records.samples import Sample
from tests.scoring.scored_task import registered, sample, write
from vcbench.cli.main import app, main
from vcbench.errors import RecordError, UsageError

ROOT = Path(__file__).parents[2]
META = [{"position": p} for p in (0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.5)]
GOOD = {"full": ["a b"] * 7, "lossy": ["a b", "a", *["lost"] * 5], "vericache": ["a b"] * 7}


@pytest.fixture(autouse=True)
def _task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    with registered():
        write(sample(GOOD, META), Path("runs/good"))
        write(sample(GOOD | {"lossy": ["explode"] * 7}, META), Path("runs/bad"))
        yield


def invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_the_table() -> None:
    code, out, err = invoke("score", "good")
    assert code == 0
    lines = out.splitlines()
    lossy = next(line for line in lines if "lossy snapkv" in line)
    assert "14 % [0, 58]" in lossy
    assert "6/0" in lossy
    assert "[-100, 0]  worse " in lossy
    assert any("vericache" in line and "same in all 7 (changes below 35 %)" in line for line in lines)
    assert "next: vcbench compare" in err
    assert Path("runs/good/scores.json").is_file()


def test_a_failing_metric_is_shown_and_the_exit_code_says_so() -> None:
    code, out, err = invoke("score", "bad")
    assert code == 1
    assert "! lossy snapkv, right, q0: ZeroDivisionError: a metric with a fault" in out
    assert "FAILED: 28 metrics of answers" in err
    assert "and 18 more" in out


def test_json_and_csv() -> None:
    code, out, _ = invoke("score", "good", "--json")
    assert code == 0
    (task,) = json.loads(out)["tasks"].values()
    right = task["sections"][0]["cells"]["l0"]["right"]
    assert right["values"]["q0"] is True
    assert right["difference"]["to_wrong"] == 6
    _, out, _ = invoke("score", "good", "--csv", "--by", "position")
    rows = [r for r in csv.DictReader(io.StringIO(out)) if (r["metric"], r["cell"]) == ("right", "l0")]
    assert [(r["key_value"], r["n"], r["value"]) for r in rows] == [
        ("0", "2", "0.5"),
        ("0.5", "1", "0.0"),
        ("1", "4", "0.0"),
    ]


def test_curves() -> None:
    code, out, _ = invoke("score", "good", "--curves")
    assert code == 0
    assert "task scored-by-test, by position" in out
    assert "Kaplan-Meier" in out


def test_by_a_key_that_no_prompt_has() -> None:
    with pytest.raises(UsageError, match="no prompt has 'depth' in its meta; they have position, words"):
        invoke("score", "good", "--by", "depth")


def test_by_a_key_before_any_prompt() -> None:
    Path("runs/good/manifest.json").unlink()
    Path("runs/good/requests.jsonl").write_bytes(b"")
    with pytest.raises(UsageError, match="good has no prompts yet, so none has 'depth' in its meta; finish the run"):
        invoke("score", "good", "--by", "depth")


def test_one_task_of_two() -> None:
    """What another task's metrics do is neither shown nor exported, and decides no exit code."""
    made, other = sample(GOOD | {"lossy": ["explode"] * 7}, META), Sample()
    made.cells += [cell | {"task": "stdlib"} for cell in other.cells]
    made.prompts += other.prompts
    made.requests += other.requests
    write(made, Path("runs/both"))
    assert invoke("score", "both")[0] == 1
    code, out, _ = invoke("score", "both", "--task", "stdlib")
    assert code == 0
    assert "scored-by-test" not in out
    with pytest.raises(UsageError, match=r"no task of both \(stdlib\) has a format to export"):
        invoke("score", "both", "--task", "stdlib", "--export", "out")
    assert not list(Path("out").iterdir())


def test_a_run_that_is_not_complete_is_said_to_be_so() -> None:
    Path("runs/good/manifest.json").unlink()
    with Path("runs/good/requests.jsonl").open("ab") as records:
        records.write(b'{"kind": "req')
    code, out, err = invoke("score", "good", "--json")
    assert code == 0
    assert json.loads(out)["complete"] is False
    assert "half written (13 bytes), dropped" in err
    assert "! the run is not complete: all figures are of what it has so far" in err


def test_figures_are_shown_also_where_they_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_only(path: Path, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("vcbench.scoring.document.replace_file", read_only)
    monkeypatch.setattr(sys, "argv", ["vcbench", "score", "good"])
    assert main() == 64
    out, err = capsys.readouterr()
    assert "same in all 7" in out
    assert "the file system is read-only; copy the run to a place that can be written" in err.replace("\n", " ")


def test_an_export_into_a_file_is_refused_with_advice() -> None:
    Path("taken").touch()
    with pytest.raises(RecordError, match="a file of that name is in the way; give --export a directory"):
        invoke("score", "good", "--export", "taken")


def test_export_writes_each_cell_apart() -> None:
    code, _, err = invoke("score", "good", "--export", "out")
    assert code == 0
    written = sorted(str(path) for path in Path("out").rglob("*.txt"))
    assert [Path(path).parent.name for path in written] == ["full", "lossy-snapkv", "vericache-snapkv-k=4"]
    assert "q1: a\n" in Path(written[1]).read_text()
    assert "written: out" in err


def test_wrong_words() -> None:
    with pytest.raises(UsageError, match="no task 'other'; it has scored-by-test"):
        invoke("score", "good", "--task", "other")
    with pytest.raises(UsageError, match="choose one"):
        invoke("score", "good", "--json", "--csv")


def test_scoring_needs_no_torch() -> None:
    program = (
        "import sys\nfrom vcbench import registry\nimport vcbench.scoring.document, vcbench.report.score\n"
        "registry.names('task')\nprint(*sorted({'torch', 'transformers', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
