"""Cells of one level below the full cache, as most tests want them."""

from __future__ import annotations

from typing import Any

from vcbench.config.schema import Arm, DraftLength
from vcbench.engine.decoding.session import CellSetup, Compress, LevelSetup


def cell(arm: Arm, compressor: Compress | None = None, draft_length: DraftLength = 0, **rest: Any) -> CellSetup:
    """How a cell of an arm with a compressor, unless it is `full`, decodes."""
    if compressor is None:
        return CellSetup(arm=arm, **rest)
    return CellSetup(arm=arm, levels=(LevelSetup(drafts_by=compressor, draft_length=draft_length),), **rest)
