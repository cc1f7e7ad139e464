"""Progress as it is said, with a clock that the test moves."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vcbench.runners import display
from vcbench.runners.display import Display, spoken


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=200, record=True)


def test_unit_speed_and_time_left() -> None:
    clock = Clock()
    shown = Display(console(terminal=False), 8, clock=clock)
    assert shown.state() == "0 of 8 answers and measurements"
    clock.now += 30
    shown.advance(tokens=600)
    assert shown.state() == "1 of 8 answers and measurements, 20.0 tokens/s over all, about 4 min left"
    shown.advance()
    assert "2 of 8" in shown.state()
    assert "about 2 min left" in shown.state()
    shown.expect(2)
    assert "2 of 10" in shown.state()
    clock.now += 30
    shown.advance(8)
    assert shown.state() == "10 of 10 answers and measurements, 10.0 tokens/s over all"


def test_without_a_terminal_a_line_a_minute() -> None:
    clock, heard = Clock(), console(terminal=False)
    shown = Display(heard, 100, clock=clock)
    shown.enter("stdlib: full")
    for _ in range(60 * 5):
        clock.now += 1
        shown.tick()
    lines = heard.export_text().splitlines()
    assert len(lines) == 5
    assert lines[0] == "stdlib: full: 0 of 100 answers and measurements, after 1 min"
    assert lines[4].endswith("after 5 min")


def test_a_long_batch_without_any_event_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, heard = Clock(), console(terminal=False)
    monkeypatch.setattr(display, "LOOK_S", 0.005)
    with Display(heard, 4, clock=clock) as shown:
        clock.now += 61
        for _ in range(400):
            if heard.file.getvalue():  # type: ignore[attr-defined]
                break
            shown._stop.wait(0.005)
    assert heard.export_text() == "prefill: 0 of 4 answers and measurements, after 1 min\n"


def test_loading_does_not_count_as_speed() -> None:
    clock, heard = Clock(), console(terminal=False)
    shown = Display(heard, 4, stage="loading the model", clock=clock)
    clock.now += 60
    shown.tick()
    shown.begin()
    clock.now += 10
    shown.advance(tokens=100)
    assert shown.state() == "1 of 4 answers and measurements, 10.0 tokens/s over all, about 30 s left"
    assert heard.export_text() == "loading the model: 0 of 4 answers and measurements, after 1 min\n"


def test_a_short_run_in_a_pipe_says_nothing_on_the_way() -> None:
    clock, heard = Clock(), console(terminal=False)
    with Display(heard, 2, clock=clock) as shown:
        clock.now += 30
        shown.advance(2, tokens=5)
    assert heard.export_text() == ""


def test_a_terminal_gets_a_bar() -> None:
    clock, seen = Clock(), console(terminal=True)
    with Display(seen, 2, clock=clock) as shown:
        clock.now += 1
        shown.enter("stdlib: full")
        shown.advance(tokens=7)
        shown._bar.refresh()
    assert "1 of 2 answers and measurements, 7.0 tokens/s over all" in seen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3600, "60 min"), (7200, "2 h 00 min")]
)
def test_spoken(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
