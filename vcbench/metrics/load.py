"""How busy a machine was with other things while a cell's batches were timed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vcbench.records.schema import BatchLine

BUSY_SHARE = 0.1
"""Share of the machine's processors beyond which other processes are said to have been in the way."""
LEAST_S = 0.25
"""Processor seconds of others below which nothing is said: clocks of processes tick in hundredths of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Processors that other processes used on average, of how many, over `wall_s` seconds of a cell's batches."""

    other_cpus: float
    cpus: float
    wall_s: float

    @property
    def busy(self) -> bool:
        """Whether others took enough to disturb the times."""
        return self.other_cpus >= BUSY_SHARE * self.cpus and self.other_cpus * self.wall_s >= LEAST_S


def load_of(batches: Iterable[BatchLine]) -> Load | None:
    """The load during those batches that recorded it; None where none did."""
    known = [batch.timing for batch in batches if {"other_cpu_s", "wall_s", "cpus"} <= batch.timing.keys()]
    wall_s = sum(timing["wall_s"] for timing in known)
    if wall_s <= 0:
        return None
    return Load(
        other_cpus=sum(timing["other_cpu_s"] for timing in known) / wall_s,
        cpus=max(timing["cpus"] for timing in known),
        wall_s=wall_s,
    )


def busy_note(loads: Iterable[Load | None]) -> str:
    """What a busy machine does to a table's times, in words; empty where it was quiet or nobody knows."""
    known = [load for load in loads if load is not None]
    busy = [load for load in known if load.busy]
    if not busy:
        return ""
    least, most = (pick(load.other_cpus for load in busy) for pick in (min, max))
    span = f"{least:.1f}" if f"{least:.1f}" == f"{most:.1f}" else f"{least:.1f} to {most:.1f}"
    return (
        f"the machine was busy: other processes used {span} of {busy[0].cpus:.0f} processors during {len(busy)} of "
        f"{len(known)} cells; times and speeds are those of a busy machine"
    )
