"""Figures of scores in words: what an interval is shown for, and signs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.records.samples import Sample
from vcbench.metrics.interval import Estimate, mean, pooled
from vcbench.records.reader import load_run
from vcbench.report.curves import print_curves
from vcbench.report.score import newest_first, print_scores, value_text
from vcbench.scoring.document import score_run
from vcbench.tasks.base import Metric

SHARE, MEAN = Metric(name="m", summary=""), Metric(name="m", summary="", kind="mean")


@pytest.mark.parametrize(
    ("metric", "found", "text"),
    [
        (MEAN, mean([0.5, 0.5]), "0.500"),
        (MEAN, Estimate(value=0.25, low=0.125, high=0.5, n=3), "0.250 [0.12, 0.50]"),
        (MEAN, Estimate(value=0.25, low=None, high=None, n=1), "0.250"),
        (MEAN, None, "-"),
        (SHARE, pooled("share", [(0.0, 1.0)] * 4), "0 % [0, 60]"),
        (SHARE, Estimate(value=0.999, low=0.99, high=1.0, n=1000), "99 % [99, 100]"),
    ],
)
def test_values(metric: Metric, found: Estimate | None, text: str) -> None:
    """Equal values resample to themselves: an interval without width would claim to know all others."""
    assert value_text(metric, found) == text


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_every_table_fits_its_screen_and_breaks_no_word(width: int, tmp_path: Path) -> None:
    out = io.StringIO()
    run = load_run(Sample().write(tmp_path / "run"))
    console = Console(file=out, width=width, force_terminal=True, color_system=None, highlight=False)
    print_scores(run, score_run(run), console)
    print_curves(run, "stdlib", console)
    shown = out.getvalue()
    assert max(map(cell_len, shown.splitlines())) <= width
    for word in ("edit_similarity", "longest_repeat", "vericache", "verdict", "hit_max_tokens"):
        assert word in shown.split(), word
    assert "±" not in shown or "±: half" in " ".join(shown.split())


def test_the_task_asked_last_comes_first(tmp_path: Path) -> None:
    sample = Sample()
    cells = [cell | {"id": f"{cell['id']}-2", "task": "other"} for cell in sample.cells]
    for name in ("prompts", "requests", "others"):
        lines = getattr(sample, name)
        moved = [
            replace(line, task="other", **({"cell": f"{line.cell}-2"} if hasattr(line, "cell") else {}))
            for line in lines
        ]
        setattr(sample, name, lines + moved)
    sample.cells = [*sample.cells, *cells]
    run = load_run(sample.write(tmp_path / "run"))
    assert [task.task for task in newest_first(run, score_run(run).tasks)] == ["other", "stdlib"]
