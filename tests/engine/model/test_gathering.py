"""A shared prefill is charged by part: nobody pays for what only others asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests.engine.tiny import decoder
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.model.gathering import PrefillTime
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic

SLOW_S = 0.02


class _Slow(Accumulator[int]):
    def __init__(self) -> None:
        self.calls = 0

    def add(self, rows: LayerRows) -> None:
        time.sleep(SLOW_S)
        self.calls += 1

    def result(self) -> int:
        return self.calls


@dataclass(frozen=True)
class Slow(Statistic[int]):
    """A statistic that takes its time."""

    name: str

    def begin(self, shape: KVShape, tokens: int) -> _Slow:
        return _Slow()


def test_parts_by_hand() -> None:
    one, two = Slow("one"), Slow("two")
    time_ = PrefillTime(total_s=10.0, window_s=0.5, statistics_s={one: 2.0, two: 3.0})
    assert time_.alone() == pytest.approx(4.5)
    assert time_.alone(query_window=32) == pytest.approx(5.0)
    assert time_.alone(statistics=[one]) == pytest.approx(6.5)
    assert time_.alone(query_window=32, statistics=[one, two]) == pytest.approx(10.0)


def test_a_slow_statistic_is_charged_to_those_who_asked() -> None:
    wanted = Slow("wanted")
    prefill = decoder().prefill(list(range(10)), chunk=5, query_window=4, statistics=[wanted])
    assert prefill.time is not None
    calls = prefill.statistics[wanted]
    assert calls > 0
    with_it, without = (prefill.time.alone(statistics=each) for each in ([wanted], []))
    assert with_it - without >= calls * SLOW_S
    assert without < prefill.time.total_s - calls * SLOW_S + 1e-6
