"""What other processes did on this machine while something was timed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class _Reading:
    """wall_s: clock. busy_s: processor seconds of the whole machine, those stolen from a virtual one among them. own_s:
    of this process. None where the system does not tell."""

    wall_s: float
    busy_s: float | None
    own_s: float | None


class Neighbours:
    """Counts from its making on; `timing` may be asked at any moment."""

    def __init__(self) -> None:
        self._before = _read()

    def timing(self) -> dict[str, float]:
        """`wall_s`, `cpus`, `other_cpu_s` (processor seconds of all other processes) and `load_1m`, where known."""
        before, after = self._before, _read()
        found = {"wall_s": after.wall_s - before.wall_s, "cpus": float(psutil.cpu_count() or 1)}
        if None not in (before.busy_s, before.own_s, after.busy_s, after.own_s):
            busy, own = (after.busy_s or 0.0) - (before.busy_s or 0.0), (after.own_s or 0.0) - (before.own_s or 0.0)
            found["other_cpu_s"] = max(0.0, busy - own)
        if hasattr(os, "getloadavg"):
            found["load_1m"] = os.getloadavg()[0]
        return found


def _read() -> _Reading:
    try:
        machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    except (psutil.Error, OSError, NotImplementedError):
        return _Reading(time.perf_counter(), None, None)
    # `guest` times are counted in `user` already.
    parts = ("user", "nice", "system", "irq", "softirq", "steal", "interrupt", "dpc")
    busy = sum(getattr(machine, name, 0.0) for name in parts)
    return _Reading(time.perf_counter(), busy, own.user + own.system)
