"""The comparison as a reader sees it, at several widths, and as data; which runs may stand side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.records.samples import FULL, LOSSY, OUTPUT, TASK, VERI, Sample, prompt
from tests.scoring.scored_task import TASK as SCORED
from tests.scoring.scored_task import registered, sample, write
from vcbench.cli.output import results
from vcbench.errors import UsageError
from vcbench.records.printable import markdown_text
from vcbench.records.reader import load_run
from vcbench.records.schema import BatchLine
from vcbench.report.columns import number, percent
from vcbench.report.compare import render
from vcbench.scoring.document import score_and_write

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 100, 120, 160)


def varied() -> Sample:
    """A run in which times and divergences differ between requests, so that there are intervals."""
    sample = Sample()
    changed = []
    for index, line in enumerate(sample.others):
        if isinstance(line, BatchLine):
            line = replace(line, timing=line.timing | {"decode_s": line.timing["decode_s"] * (1 + index % 4 / 8)})
        changed.append(line)
    sample.others = changed
    return sample.change(LOSSY, "two", token_ids=list(OUTPUT))


def text(paths: Sequence[Path], width: int, *, color: bool = False, no_color: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=True,
        color_system="standard" if color else None,
        no_color=no_color,
        highlight=False,
    )
    render(paths, console=console)
    return out.getvalue()


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return varied().write(Path("quickstart"))


@pytest.mark.parametrize("width", WIDTHS)
def test_golden(good: Path, width: int) -> None:
    """Delete a golden file to have it written anew, then look at it."""
    golden = GOLDEN / f"compare-{width}.txt"
    found = text([good], width)
    if not golden.exists():
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found, "utf-8")
        pytest.fail(f"{golden} was missing and has been written; look at it and run again")
    assert found == golden.read_text("utf-8")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_of_the_table_wraps_or_is_cut(good: Path, width: int) -> None:
    lines = text([good], width).splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("─"))
    labels = [line.split("  ")[0] for line in lines[rule + 1 : rule + 4]]
    assert labels == ["full", "lossy snapkv", "vericache snapkv k=4"]
    assert all(cell_len(line) <= width for line in lines[: rule + 4])
    assert "…" not in "".join(lines)
    assert "bitwise lossless: 4 of 4 requests" in lines
    assert lines[-1] == "next: vcbench show quickstart --request one"


def test_nobody_reads_a_factor_off_a_row_that_holds_more_than_full_kv(good: Path) -> None:
    """P20: at every width the bytes held stand beside those needed to draft, in one column that is never dropped."""
    for width in (40, *WIDTHS):
        row = next(line for line in text([good], width).splitlines() if "k=4" in line or "vericache" in line)
        assert "2.67/0.73" in text([good], width), row
        assert "4.00" not in row or "4.00/0.80" in row


def test_intervals_of_speeds_stay_and_one_batch_says_so(good: Path, tmp_path: Path) -> None:
    for width in WIDTHS:
        shown = text([good], width)
        assert "1.13 ±0.013" in shown
        assert "±: half of the 95 % interval" in shown.replace("\n  ", " ")
    single = text([Sample(names=("one",)).write(tmp_path / "single")], 80)
    assert "1.33 ±?" in single
    assert "±?: one batch, so no interval" in single.replace("\n  ", " ")
    assert "half of the 95 %" not in single


def test_unknown_columns_take_no_room(tmp_path: Path) -> None:
    """What no row has is left out, so that it displaces nothing."""
    sample = Sample()
    sample.others = [line for line in sample.others if isinstance(line, BatchLine)]
    shown = text([sample.write(tmp_path / "run")], 160)
    assert "KL" not in shown
    assert "tokens per round" not in text([Sample(cells=[FULL, LOSSY]).write(tmp_path / "lossy")], 160)


def test_a_busy_machine_and_batches_without_partner_are_said_first(tmp_path: Path) -> None:
    sample = varied()
    sample.others = [
        replace(line, timing=line.timing | {"other_cpu_s": 1.8}) if isinstance(line, BatchLine) else line
        for line in sample.others
        if not (isinstance(line, BatchLine) and line.cell == FULL["id"] and line.requests == ["one"])
    ]
    shown = text([sample.write(tmp_path / "run")], 200)
    busy = "the machine was busy: other processes used 1.5 of 2 processors during 3 of 3 cells"
    apart = "lossy snapkv, task stdlib: speed-ups are over 3 of 4 batches"
    for said in (busy, apart):
        assert said in shown
        assert shown.index(said) < shown.index("x full")


def test_parquet_and_csv_are_one_table(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    render([good], as_csv=True, parquet=tmp_path / "run.parquet", console=Console(stderr=True))
    table = pandas.read_parquet(tmp_path / "run.parquet")
    plain = pandas.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(table.columns) == list(plain.columns)
    assert table["n"].dtype == "Int64"
    assert table["end_to_end_speedup"].tolist() == pytest.approx(plain["end_to_end_speedup"].tolist())
    assert table["end_to_end_speedup_n"].tolist() == [4, 4, 4]
    assert table["break_even_tokens"].tolist()[1:] == [3, 5]
    assert table["break_even_never"].tolist()[1:] == [False, False]
    assert pandas.isna(table["kl_per_step_nats"][0])


def test_parquet_says_what_to_install(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcbench.report.frame.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"--parquet needs pyarrow: pip install 'vcbench\[tasks\]'"):
        render([good], parquet=tmp_path / "x.parquet", console=Console(stderr=True))


def test_colour_is_never_the_only_signal(good: Path) -> None:
    colored = text([good], 120, color=True)
    assert "\x1b[" in colored
    plain = text([good], 120, color=True, no_color=True)
    assert "\x1b[3" not in plain
    assert "bitwise lossless" in plain


def test_files_get_the_wide_table_and_columns_is_obeyed(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    render([good], console=results())
    assert "tokens/s" in "".join(capsys.readouterr().out.splitlines()[:3])
    monkeypatch.setenv("COLUMNS", "80")
    render([good], console=results())
    assert max(map(cell_len, capsys.readouterr().out.splitlines()[:7])) <= 80


def test_violations_are_named(tmp_path: Path) -> None:
    sample = varied().change(VERI, "two", token_ids=[*OUTPUT[:7], 1, 2, 3]).drop(VERI, "three")
    sample.change(LOSSY, "one", error="no room for token 9", finish_reason="error", token_ids=[])
    found = text([sample.write(tmp_path / "bad")], 200)
    assert "FAIL: NOT bitwise lossless: 2 of 4 requests identical to full KV" in found
    assert "vericache snapkv k=4 (stdlib): VIOLATION stdlib/two: token 7" in found
    assert "vericache snapkv k=4 (stdlib): MISSING stdlib/three: no result of this cell" in found
    assert "! lossy snapkv, task stdlib, request one: no room for token 9" in found
    assert found.endswith("--request two\n")


def test_a_run_without_vericache_or_without_results(tmp_path: Path) -> None:
    lossy = text([Sample(cells=[FULL, LOSSY]).write(tmp_path / "lossy")], 120)
    assert "no VeriCache cell: nothing to say about losslessness" in lossy
    empty = Sample(names=())
    found = text([empty.write(tmp_path / "empty")], 120)
    assert "VACUOUS: 0 of 0 requests" in found
    assert "next: vcbench check" in found


def test_several_runs(tmp_path: Path) -> None:
    first = varied().write(tmp_path / "first")
    other = Sample(model="other", exactness="fast", names=("one", "five")).write(tmp_path / "second", finish=False)
    found = text([first, other], 160)
    assert found.count("\nsecond  vericache snapkv k=4") == 1
    assert "note: the runs differ in model (model.id); each row is against its own run's full KV" in found
    assert (
        "speeds of these runs are not comparable with one another: exactness bitwise in first, fast in second" in found
    )
    assert found.index("not comparable") < found.index("x full")
    assert "note: the runs answer different prompts: 1 in common, of first 4, second 2" in found
    assert "note: second is not complete" in found
    assert "first: bitwise lossless: 4 of 4 requests" in found
    assert "second: FAIL: not shown to be lossless up to near ties: 2 of 2 requests identical" in found


def test_joins_that_would_pair_different_things(tmp_path: Path) -> None:
    first = Sample().write(tmp_path / "first")
    with pytest.raises(UsageError, match="is given twice"):
        text([first, tmp_path / "." / "first"], 120)
    sample = Sample()
    sample.prompts[1] = prompt("two", (9, 9))
    with pytest.raises(UsageError, match=r"task 'stdlib', request 'two' is another prompt in .*second than in .*first"):
        text([first, sample.write(tmp_path / "second")], 120)
    with pytest.raises(UsageError, match="no run is given"):
        text([], 120)
    with pytest.raises(UsageError, match="choose one"):
        render([first], as_json=True, as_csv=True, console=Console())


def test_json_csv_and_markdown(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(stderr=True)
    render([good], as_json=True, console=console)
    document = json.loads(capsys.readouterr().out)
    assert document["runs"][0]["lossless"]["outcome"] == "PASS"
    assert document["runs"][0]["cells"][1]["divergence"]["mean"]["value"] == pytest.approx(0.1)
    render([good], as_csv=True, console=console)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["label"] for row in rows] == ["full", "lossy snapkv", "vericache snapkv k=4"]
    assert float(rows[2]["committed_per_round"]) == 3.0
    assert rows[0]["kl_per_step_nats"] == ""
    assert all(None not in row and None not in row.values() for row in rows)
    render([good], as_markdown=True, console=console)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| cell | n | KV x less at end fast/held |")
    assert len({line.count("|") for line in lines[:5]}) == 1
    assert "- bitwise lossless: 4 of 4 requests" in lines


def test_hostile_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [FULL, VERI | {"label": "veri\x1b[2J|[bold]x\u202e"}]
    path = (
        Sample(cells=cells, names=("a\x07b",)).change(VERI, error="e\x1b", finish_reason="error").write(tmp_path / "x")
    )
    found = text([path], 160)
    assert "\x1b" not in found
    assert "\u202e" not in found
    assert r"veri\x1b[2J|[bold]x\u202e" in found
    render([path], as_markdown=True, console=Console())
    assert markdown_text("veri\x1b[2J|[bold]x\u202e") in (shown := capsys.readouterr().out)
    assert not set(shown) & set("\x1b\u202e<`")
    assert "[bold]" not in shown


def test_two_tasks_have_a_column(tmp_path: Path) -> None:
    cells = [cell | {"id": f"{cell['id']}-2", "task": "other"} for cell in (FULL, LOSSY, VERI)]
    sample = Sample()
    for name in ("prompts", "requests", "others"):
        lines = getattr(sample, name)
        moved = [
            replace(line, task="other", **({"cell": f"{line.cell}-2"} if hasattr(line, "cell") else {}))
            for line in lines
        ]
        setattr(sample, name, lines + moved)
    sample.cells = [*sample.cells, *cells]
    found = text([sample.write(tmp_path / "run")], 160)
    assert found.count(f"{TASK} ") == 3
    assert found.count("other ") == 3
    assert "bitwise lossless: 8 of 8 requests" in found


def test_headline_metrics_and_exclusions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task's headline metrics are columns, whether scores.json is there or not; what was excluded is a note."""
    texts = {"full": ["a b"] * 3, "lossy": ["a b", "x", "x"]}
    with registered():
        path = write(sample(texts), tmp_path / "run")
        provenance = json.loads((path / "provenance.json").read_text())
        provenance["excluded"] = {SCORED: [{"id": "q9", "reason": "9,000 tokens exceed 8,192"}]}
        (path / "provenance.json").write_text(json.dumps(provenance))
        shown = text([path], 200)
        header, lossy = shown.splitlines()[2], next(x for x in shown.splitlines() if x.startswith("lossy"))
        assert "right" in "".join(shown.splitlines()[:4])
        assert "33 [1, 91]" in lossy, header
        assert "note: 1 of 4 rows of scored-by-test excluded; the first: q9: 9,000 tokens exceed 8,192" in shown
        score_and_write(load_run(path))
        assert text([path], 200) == shown
        render([path], as_json=True, console=Console(stderr=True))
        (_, cell) = json.loads(capsys.readouterr().out)["runs"][0]["cells"]
        assert cell["headline"]["right"]["difference"]["to_wrong"] == 2
        render([path], as_csv=True, console=Console(stderr=True))
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert [float(row["right"]) for row in rows] == pytest.approx([1.0, 1 / 3])
        render([path], as_markdown=True, console=Console(stderr=True))
        assert "| right % |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (0.0790123, "0.0790"),
        (13.04, "13.0"),
        (102.4, "102"),
        (1234.5, "1,234"),
        (2.3e-7, "2.3e-07"),
    ],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_shares_are_not_rounded_to_certainty() -> None:
    from vcbench.metrics.interval import Estimate

    assert percent(None) == "-"
    for value, shown in [(1.0, "100"), (0.999, "99"), (0.001, "1"), (0.0, "0"), (0.5, "50")]:
        assert percent(Estimate(value=value, low=None, high=None, n=1)) == shown
