"""How far a run is: a bar on a terminal, elsewhere a line a minute; with unit, tokens/s and the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

EVERY_S = 60.0
"""Seconds between two lines where there is no terminal."""
LOOK_S = 5.0
"""Seconds between two looks at the clock, so that a long batch is not silent."""
UNIT = "answers and measurements"
"""What a run is counted in: an answer of a cell to a prompt, or the measurement of its divergence."""


class Display:
    """The progress of one run; use it as a context. clock: seconds that only grow."""

    def __init__(
        self, console: Console, total: int, *, stage: str = "prefill", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock
        self.total, self.done, self.tokens, self.stage = total, 0, 0, stage
        self._entered = self._started = self._said = clock()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._watch: threading.Thread | None = None
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(self.stage, total=total, state=self.state())

    def __enter__(self) -> Self:
        self._bar.start()
        self._watch = threading.Thread(target=self._look, name="progress", daemon=True)
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.join()
        self._bar.stop()

    def begin(self) -> None:
        """From now on answers can be expected: speed and time left are reckoned from here."""
        self._started = self._clock()

    def enter(self, stage: str) -> None:
        """What is being done now."""
        self.stage = stage
        self.tick()

    def expect(self, more: int) -> None:
        """More is owed than was known, such as further turns of conversations."""
        self.total += more
        self.tick()

    def advance(self, count: int = 1, *, tokens: int = 0) -> None:
        """So many answers or measurements are recorded, with so many tokens of output."""
        self.done += count
        self.tokens += tokens
        self.tick()

    def state(self) -> str:
        """`12 of 40 answers and measurements, 35.1 tokens/s, about 3 min left`: as far as it is known."""
        elapsed = self._clock() - self._started
        parts = [f"{self.done} of {self.total} {UNIT}"]
        if self.tokens and elapsed > 0:
            parts.append(f"{self.tokens / elapsed:.1f} tokens/s over all")
        if 0 < self.done < self.total:
            parts.append(f"about {spoken(elapsed / self.done * (self.total - self.done))} left")
        return ", ".join(parts)

    def tick(self) -> None:
        """Brings the bar up to date; without a terminal it prints a line if the last one is a minute old."""
        with self._lock:
            state = self.state()
            self._bar.update(self._task, description=self.stage, total=self.total, completed=self.done, state=state)
            now = self._clock()
            if not self._console.is_terminal and now - self._said >= EVERY_S:
                self._said = now
                spent = spoken(now - self._entered)
                self._console.print(f"{self.stage}: {state}, after {spent}", markup=False)

    def _look(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.tick()


def spoken(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
