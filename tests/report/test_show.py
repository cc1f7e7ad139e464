"""One request in every cell: the fork is marked, bars are drawn, and nothing in a record can upset the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.records.samples import LOSSY, NAMES, OUTPUT, VERI, Sample, batch, divergence
from vcbench.errors import UsageError
from vcbench.records.printable import printable
from vcbench.records.reader import load_run
from vcbench.report.runs import list_runs
from vcbench.report.show import show_request
from vcbench.report.sparkline import rounds_bar, sparkline


def shown(path: Path, request: str = "one", **options: str) -> str:
    out = io.StringIO()
    show_request(path, request, Console(file=out, width=100), task=options.get("task"))
    return out.getvalue()


def test_what_is_shown(tmp_path: Path) -> None:
    text = shown(Sample().write(tmp_path / "run"))
    assert "prompt: 4 tokens" in text
    assert "...the end of prompt one" in text
    assert "leaves full KV at token 6, where it has id 90 and full KV 16" in text
    assert "w14 w15 [fork at token 6]lost again and again" in text
    assert "rounds, accepted/drafted: 4/4 2/4 0/0" in text
    assert "accepted share:  █▄" in text
    assert "KL in nats: largest 0.3, sum 1" in text
    # Of VeriCache: what drafting needs is 2.67 times less, what is held in all is more than full KV.
    held = "fast memory to draft 450 (2.67 x less); held in all 1,650 (0.73): 1,650 in memory"
    assert f"KV bytes at the end: full KV 1,200; {held}" in text
    assert "codes or kept entries alone: 8.00 at the start; 5.33 at the end; layers: SnapKVCache x 2" in text
    assert "time: prefill 0.500 s, compression 0.100 s, decoding 1.00 s, first token after 0.600 s" in text
    assert "end to end, prefill and compression included: 6.25 tokens/s, 0.938 x full KV's of this request" in text
    assert (
        "all batches of the cell: decoding 2.00 x full KV, end to end 1.36 x full KV, ahead from output token 3" in text
    )
    assert text.count("same tokens as full KV") == 1


def test_a_loaded_run_serves_too(tmp_path: Path) -> None:
    out = io.StringIO()
    show_request(load_run(Sample().write(tmp_path / "run")), "two", Console(file=out))
    assert "stdlib/two" in out.getvalue()


def test_control_characters_and_surrogates(tmp_path: Path) -> None:
    nasty = "a\x1b[31mred\x07\r\u202e\u2028\ud83d [bold]x[/bold]\nline\ttab"
    sample = Sample().change(LOSSY, "one", text=nasty)
    sample.prompts[0] = replace(sample.prompts[0], tail=nasty)
    text = shown(sample.write(tmp_path / "run"))
    assert not any(char in text for char in "\x1b\x07\r\u202e\u2028")
    assert r"a\x1b[31mred\x07\r\u202e\u2028\ud83d [bold]x[/bold]" in text
    assert text.count("  line    tab") == 2
    text.encode("utf-8")


def test_errors_gaps_and_unknowns(tmp_path: Path) -> None:
    sample = Sample().change(LOSSY, "one", error="NaN at step 3, layer 5", kv_end={"stored": None}, text="")
    sample.drop(VERI, "one")
    sample.prompts[0] = replace(sample.prompts[0], tail="")
    sample.others = [batch(cell, name) for cell in sample.cells for name in NAMES if (cell, name) != (VERI, "one")]
    sample.others.append(divergence(LOSSY, "one", kl=[0.0, None, 0.2], top1_agree=[True, False, True]))
    text = shown(sample.write(tmp_path / "run"))
    assert "failed: NaN at step 3, layer 5" in text
    assert "KV bytes at the end" in text
    assert "KV bytes at the start: full KV 1,000; fast memory to draft 250 (4.00 x less)" in text
    assert "no result recorded" in text
    assert "(no text recorded; last token ids 1 2 3 422)" in text
    assert "largest 0.2, sum 0.2, 1 steps unknown" in text


def test_an_output_that_ends_early(tmp_path: Path) -> None:
    short = {"token_ids": OUTPUT[:4], "text": " w10 w11 w12 w13", "committed": [3], "drafted": [2], "accepted": [2]}
    sample = Sample().change(VERI, "one", **short).change(VERI, "two", finish_reason="stop")
    path = sample.write(tmp_path / "run")
    assert "leaves full KV at token 4, where it has id none (it ends) and full KV 14" in shown(path)
    assert "same tokens as full KV, but another finish reason" in shown(path, "two")


def test_unknown_requests(tmp_path: Path) -> None:
    path = Sample().write(tmp_path / "run")
    with pytest.raises(UsageError, match=r"no request 'thre' in .*; did you mean 'three'\?"):
        shown(path, "thre")
    with pytest.raises(UsageError, match="no request 'one'"):
        shown(path, "one", task="other")
    with pytest.raises(UsageError, match="the run has no prompts yet"):
        shown(Sample(names=()).write(tmp_path / "empty"))


def test_a_stream_that_knows_only_ascii(tmp_path: Path) -> None:
    path = Sample().change(LOSSY, "one", text="caf\u00e9 \U0001f600").write(tmp_path / "run")
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        show_request(path, "one", Console(file=stream, width=100))
        stream.flush()
        found = raw.getvalue().decode("ascii")
    assert r"caf\xe9 \U0001f600" in found
    assert "accepted share:  @" in found


@given(st.text(st.characters()))
def test_printable(text: str) -> None:
    for kept in (printable(text), printable(text, newlines=True)):
        kept.encode("utf-8")
        assert all(char.isprintable() or char in "\n\t " or ord(char) > 127 for char in kept)
        assert "\x1b" not in kept
    assert "\n" not in printable(text)


def test_sparkline() -> None:
    assert sparkline([0.0, 1.0, 0.5, None], width=10) == "▁█▄?"
    assert sparkline([0.0, 0.0], width=10) == "▁▁"
    assert sparkline([], width=10) == ""
    assert sparkline([None], width=10) == "?"
    assert sparkline([0.0, 0.001, 1000.0], width=10) == "▁▂█"
    assert sparkline([1.0, 3.0, 2.0, 0.0, 0.0], width=3) == "█▅▁"
    assert sparkline([0.0, 1.0], width=10, ascii_only=True) == "_@"
    assert len(sparkline([1.0] * 1001, width=64)) <= 64
    assert rounds_bar([4, 0, 2, 0], [4, 4, 4, 0]) == "█▁▄ "


def test_list_of_runs(tmp_path: Path) -> None:
    Sample().write(tmp_path / "b")
    Sample().drop(VERI, "one").write(tmp_path / "a", finish=False)
    (Sample().write(tmp_path / "c") / "config.yaml").write_text("[")
    (tmp_path / "not-a-run").mkdir()
    damaged, unfinished, complete = list_runs(tmp_path)
    assert damaged.state.startswith("damaged: ")
    assert (unfinished.name, unfinished.state, unfinished.answers, unfinished.expected) == ("a", "unfinished", 11, 12)
    assert (complete.name, complete.state, complete.model, complete.cells) == ("b", "complete", "tiny", 3)
