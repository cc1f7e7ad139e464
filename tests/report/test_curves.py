"""The tables by position, as a reader sees them."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from tests.records.samples import FULL, LOSSY, NAMES, TASK, VERI, Sample, divergence
from vcbench.records.reader import load_run
from vcbench.report.curves import print_curves, shown_steps


def text(sample: Sample, path: Path, width: int = 200) -> str:
    out = io.StringIO()
    print_curves(load_run(sample.write(path)), TASK, Console(file=out, width=width))
    return out.getvalue()


def test_growth_distribution_and_survival(tmp_path: Path) -> None:
    sample = Sample()
    sample.others += [
        divergence(
            VERI, name, kl=[0.0] * 10, top1_agree=[True] * 10, top5_overlap=[5] * 10, basis="same logits"
        )
        for name in NAMES
    ]  # fmt: skip
    lines = [line.split() for line in text(sample, tmp_path / "run").splitlines()]
    lossy = [line for line in lines if line[:2] == ["lossy", "snapkv"]]
    veri = [line for line in lines if line[:2] == ["vericache", "snapkv"]]
    assert lossy[0][2:7] == ["4", "0", "0.100", "0.300", "1.00"]
    assert veri[0][3:8] == ["4", "0", "0", "0", "0"]
    assert lossy[1][2:] == ["0.0831", "0.882", "-", "teacher-forced", "(4)"]
    assert veri[1][3:] == ["0", "-", "~0", "same", "logits", "(4)"]
    assert lossy[2][2:8] == ["4", "40", "0.100", "0.100", "0.210", "0.300"]
    assert lossy[3][2:] == ["4", "4", "100", "100", "100", "0", "7"]
    assert veri[3][3:] == ["4", "0", "100", "100", "100", "100", "never"]


def test_on_a_narrow_screen_the_bands_go_and_no_figure_is_cut(tmp_path: Path) -> None:
    sample = Sample()
    sample.others = [
        divergence(LOSSY, name, kl=[0.1 * (i + 1)] * 10, top1_agree=[True] * 10) for i, name in enumerate(NAMES)
    ]
    wide, narrow = (text(sample, tmp_path / str(width), width=width) for width in (200, 72))
    assert "2.50 ±" in wide
    assert narrow.count("±") < wide.count("±")
    assert max(len(line) for line in narrow.splitlines() if "lossy" in line) <= 72
    assert "…" not in narrow


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    sample = Sample(cells=[FULL])
    assert "no cell beside full KV has an answer or a divergence" in text(sample, tmp_path / "full")
    sample = Sample(cells=[FULL, LOSSY])
    sample.others = []
    shown = text(sample, tmp_path / "undiverged")
    assert "nats/step" not in shown
    assert "median" in shown


def test_the_positions_shown() -> None:
    assert shown_steps(3) == [1, 2, 3]
    assert shown_steps(255) == [1, 2, 5, 10, 25, 50, 100, 250, 255]
    assert shown_steps(1) == [1]
