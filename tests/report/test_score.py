"""Figures of scores in words: what an interval is shown for, and signs."""

from __future__ import annotations

import pytest

from vcbench.metrics.interval import Estimate, mean, pooled
from vcbench.report.score import value_text
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
