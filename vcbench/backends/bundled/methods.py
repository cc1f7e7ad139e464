"""The methods of a plan as compressors, one instance each, and how the engine carries out a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from vcbench import registry
from vcbench.backends.cells import Cell, Level
from vcbench.compressors.base import Compressor
from vcbench.config.options import build_options
from vcbench.config.paths import user_path
from vcbench.config.schema import DEFAULT_MIN_MATCH, RunConfig
from vcbench.engine.decoding.session import CellSetup, Compress, LevelSetup, Lookup


class Methods:
    """The compressors of a plan's cells. A method has one, whatever the number of its cells."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._made: dict[str, Compressor[Any]] = {}
        for level in (level for cell in cells for level in cell.compressing):
            if level.name not in self._made:
                self._made[level.name] = _make(level)

    def of(self, name: str) -> Compressor[Any]:
        """The compressor of a method, by its name in the configuration."""
        return self._made[name]

    def of_all(self, cells: Iterable[Cell]) -> list[Compressor[Any]]:
        """Those of several cells, each once."""
        names = dict.fromkeys(level.name for cell in cells for level in cell.compressing)
        return [self._made[name] for name in names]


def cell_setup(cell: Cell, config: RunConfig, compressor: Callable[[str], Compress]) -> CellSetup:
    """How the engine carries out a cell. compressor: that of a method, by its name."""
    directory = config.engine.disk_directory
    return CellSetup(
        arm=cell.config.arm,
        levels=tuple(_level_setup(level, compressor) for level in cell.levels),
        seed=config.seed,
        full_cache=cell.config.full_cache,
        disk_directory=user_path(directory) if directory is not None else None,
        draft_weights=cell.config.draft_weights,
    )


def _level_setup(level: Level, compressor: Callable[[str], Compress]) -> LevelSetup:
    lookup = Lookup(level.config.min_match or DEFAULT_MIN_MATCH)
    return LevelSetup(
        name=level.name,
        drafts_by=lookup if level.method is None else compressor(level.name),
        draft_length=level.config.draft_length or 0,
    )


def _make(level: Level) -> Compressor[Any]:
    assert level.method is not None
    name = level.method.compressor
    given = () if level.calibration is None else (level.calibration,)
    compressor: Compressor[Any] = registry.lookup("compressor", name)(
        build_options("compressor", name, level.method.options), *given
    )
    return compressor
