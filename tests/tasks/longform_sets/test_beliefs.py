"""Traces of beliefs: right ones in other words, and where a wrong one breaks off."""

from __future__ import annotations

import pytest

from tests.real_data import real
from vcbench.tasks.longform_sets.beliefs import agreeing_share, steps
from vcbench.tasks.rows import read_rows

RIGHT = (
    "Ines's belief on the teapot:\n"
    "- Step 0: (initial state) {Ines location: attic; Ines's belief on teapot: None}\n"
    "- Step 1: (Ines location changed) {Ines location: boathouse; Ines's belief on teapot: boathouse's shelf}\n"
    "- Step 2: (Ines location unchanged) {Ines location: boathouse; Ines's belief on teapot: boathouse's bench}\n"
    "Final Answer: the boathouse's bench"
)


def test_what_a_step_says() -> None:
    assert steps(RIGHT)[1] == "1 ines changed ines boathouse iness teapot boathouses shelf"
    assert len(steps(RIGHT)) == 3
    assert steps("no trace") == steps("Step 0: without a dash") == []


def test_the_share_of_right_steps() -> None:
    assert agreeing_share(RIGHT, RIGHT) == 1.0
    assert agreeing_share(RIGHT.upper().replace("STEP", "Step"), RIGHT) == 1.0
    assert agreeing_share(RIGHT.replace("    ", ""), RIGHT) == 1.0
    assert agreeing_share(RIGHT.replace("shelf", "bench"), RIGHT) == pytest.approx(1 / 3)
    assert agreeing_share("\n".join(RIGHT.split("\n")[:3]), RIGHT) == pytest.approx(2 / 3)
    assert agreeing_share(RIGHT + "\n- Step 3: more", RIGHT) == 1.0
    assert agreeing_share("", RIGHT) == 0.0


def test_only_the_last_trace_counts() -> None:
    assert agreeing_share(f"First a trial:\n- Step 0: nonsense\n- Step 1: nonsense\n{RIGHT}", RIGHT) == 1.0
    assert (
        agreeing_share("  - Step 0: (initial state) {Ines location: attic; Ines's belief on teapot: None}", RIGHT) > 0
    )


def test_the_benchmarks_own_traces() -> None:
    rows = [row.values for row in read_rows(real("longform/longproc_tom_tracking_0.5k_3.json"))]
    assert len(rows) == 3
    for values in rows:
        assert len(steps(values["solution"])) == len(values["story"].split("\n"))
        assert agreeing_share(values["solution"], values["solution"]) == 1.0
