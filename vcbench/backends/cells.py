"""What a backend is given to serve, the cells of a plan; and its identity, which tells their answers from others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vcbench.config.schema import CellConfig, LevelConfig, MethodConfig, RunConfig, TaskConfig
from vcbench.models.architecture import Architecture

if TYPE_CHECKING:
    from vcbench.calibration.base import Calibration

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What answers depend on besides the configuration.

    `kernels`: versions of what computes, and the instruction set or device that it computes on. `tokenizer_sha256`
    covers the chat template, `architecture_sha256` the model's shape with its rotary scaling.
    """

    weights_sha256: str = UNKNOWN
    revision: str | None = None
    tokenizer_sha256: str = UNKNOWN
    architecture_sha256: str = UNKNOWN
    stop_ids: tuple[int, ...] = ()
    device: str
    dtype: str
    code_sha256: str
    kernels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level below the full cache: its method, None for `ngram`, and the method's calibration where it uses one."""

    config: LevelConfig
    method: MethodConfig | None = None
    calibration: Calibration | None = None

    @property
    def name(self) -> str:
        """The method's name in the configuration, or `ngram`."""
        return self.config.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One task in one arm. levels: those below the full cache, the lowest first; none in the arm `full`."""

    id: str
    label: str
    config: CellConfig
    task: TaskConfig
    levels: tuple[Level, ...] = ()

    @property
    def compressing(self) -> tuple[Level, ...]:
        """The levels with a method."""
        return tuple(level for level in self.levels if level.method is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The cells of a run, tasks in the configuration's order and within each the cells in theirs.

    `final` is False while the weights or the device have not been seen; the ids are then only those of the plan.
    """

    config: RunConfig
    architecture: Architecture
    cells: tuple[Cell, ...]
    final: bool

    def of_task(self, name: str) -> tuple[Cell, ...]:
        """The cells of one task, `full` first."""
        cells = [cell for cell in self.cells if cell.task.name == name]
        return tuple(sorted(cells, key=lambda cell: cell.config.arm != "full"))
