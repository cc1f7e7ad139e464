"""The methods of a plan as compressors, one instance each, and how the engine carries out a cell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vcbench import registry
from vcbench.backends.cells import Cell
from vcbench.compressors.base import Compressor
from vcbench.config.options import build_options
from vcbench.config.schema import RunConfig
from vcbench.engine.decoding.session import CellSetup, Compress, LevelSetup


class Methods:
    """The compressors of a plan's cells. A method has one, whatever the number of its cells."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._made: dict[str, Compressor[Any]] = {}
        for cell in cells:
            if cell.method is not None and name_of(cell) not in self._made:
                self._made[name_of(cell)] = _make(cell)

    def of(self, cell: Cell) -> Compressor[Any] | None:
        """The cell's compressor; None for `full`."""
        return None if cell.method is None else self._made[name_of(cell)]

    def of_all(self, cells: Iterable[Cell]) -> list[Compressor[Any]]:
        """Those of several cells, each once."""
        found = {name_of(cell): self._made[name_of(cell)] for cell in cells if cell.method is not None}
        return list(found.values())


def name_of(cell: Cell) -> str:
    """The method's name in the configuration; empty for `full`."""
    return cell.config.method or ""


def cell_setup(cell: Cell, config: RunConfig, compressor: Compress | None) -> CellSetup:
    """How the engine carries out a cell."""
    directory = config.engine.disk_directory
    return CellSetup(
        arm=cell.config.arm,
        levels=(LevelSetup(drafts_by=compressor, draft_length=cell.config.draft_length or 0),) if compressor else (),
        seed=config.seed,
        full_cache=cell.config.full_cache,
        disk_directory=Path(directory) if directory is not None else None,
    )


def _make(cell: Cell) -> Compressor[Any]:
    assert cell.method is not None
    name = cell.method.compressor
    given = () if cell.calibration is None else (cell.calibration,)
    compressor: Compressor[Any] = registry.lookup("compressor", name)(
        build_options("compressor", name, cell.method.options), *given
    )
    return compressor
