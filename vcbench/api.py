"""What plug-ins may import. Everything else may move; a name here stays, or its change stands in the changelog.

Names are loaded when they are asked for: a task imports no torch by importing from here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vcbench.calibration.base import Calibration as Calibration
    from vcbench.calibration.base import CalibrationNeed as CalibrationNeed
    from vcbench.calibration.base import Fit as Fit
    from vcbench.compressors.base import BudgetCompressor as BudgetCompressor
    from vcbench.compressors.base import BudgetOptions as BudgetOptions
    from vcbench.compressors.base import Compressor as Compressor
    from vcbench.compressors.base import CompressorOptions as CompressorOptions
    from vcbench.compressors.base import DroppingCompressor as DroppingCompressor
    from vcbench.compressors.base import check_factor as check_factor
    from vcbench.compressors.base import dropped_bytes as dropped_bytes
    from vcbench.compressors.base import top_positions as top_positions
    from vcbench.compressors.evicting import EvictingCompressor as EvictingCompressor
    from vcbench.compressors.evicting import EvictingOptions as EvictingOptions
    from vcbench.engine.attention.key_shares import Columns as Columns
    from vcbench.engine.attention.key_shares import attention_by_column as attention_by_column
    from vcbench.engine.codes.coders import ClippedCoder as ClippedCoder
    from vcbench.engine.codes.coders import Coder as Coder
    from vcbench.engine.codes.coders import DirectionCoder as DirectionCoder
    from vcbench.engine.codes.coders import FP8Coder as FP8Coder
    from vcbench.engine.codes.coders import UniformCoder as UniformCoder
    from vcbench.engine.codes.frames import Frame as Frame
    from vcbench.engine.codes.frames import GroupedHeads as GroupedHeads
    from vcbench.engine.codes.frames import Rotated as Rotated
    from vcbench.engine.codes.quantised import QuantisedCache as QuantisedCache
    from vcbench.engine.codes.scheme import Scheme as Scheme
    from vcbench.engine.kv.cache import EntryCache as EntryCache
    from vcbench.engine.kv.cache import FullCache as FullCache
    from vcbench.engine.kv.cache import KVCache as KVCache
    from vcbench.engine.kv.evicting import EvictionRule as EvictionRule
    from vcbench.engine.kv.kept import KeptCache as KeptCache
    from vcbench.engine.kv.kept import WindowCache as WindowCache
    from vcbench.engine.kv.make import make_store as make_store
    from vcbench.engine.kv.ragged import RaggedCache as RaggedCache
    from vcbench.engine.kv.shape import KVShape as KVShape
    from vcbench.engine.kv.store import ExactStore as ExactStore
    from vcbench.engine.model.decoder import Block as Block
    from vcbench.engine.model.decoder import Decoder as Decoder
    from vcbench.engine.model.decoder import Instruct as Instruct
    from vcbench.engine.model.decoder import Prefill as Prefill
    from vcbench.engine.model.observe import Accumulator as Accumulator
    from vcbench.engine.model.observe import LayerRows as LayerRows
    from vcbench.engine.model.observe import Statistic as Statistic
    from vcbench.engine.rope import RopeTable as RopeTable
    from vcbench.models.architecture import Architecture as Architecture
    from vcbench.registry import register as register
    from vcbench.tasks.base import Answer as Answer
    from vcbench.tasks.base import Exclusion as Exclusion
    from vcbench.tasks.base import Metric as Metric
    from vcbench.tasks.base import Prompt as Prompt
    from vcbench.tasks.base import PromptTokenizer as PromptTokenizer
    from vcbench.tasks.base import Question as Question
    from vcbench.tasks.base import Ratio as Ratio
    from vcbench.tasks.base import Task as Task
    from vcbench.tasks.base import TaskOptions as TaskOptions
    from vcbench.tasks.base import Value as Value
    from vcbench.tasks.base import checked as checked
    from vcbench.tasks.base import follow_up_id as follow_up_id

HOMES = {
    "vcbench.registry": ("register",),
    "vcbench.compressors.base": (
        "BudgetCompressor",
        "BudgetOptions",
        "Compressor",
        "CompressorOptions",
        "DroppingCompressor",
        "check_factor",
        "dropped_bytes",
        "top_positions",
    ),
    "vcbench.compressors.evicting": (
        "EvictingCompressor",
        "EvictingOptions",
    ),
    "vcbench.calibration.base": (
        "Calibration",
        "CalibrationNeed",
        "Fit",
    ),
    "vcbench.models.architecture": ("Architecture",),
    "vcbench.engine.model.decoder": (
        "Block",
        "Decoder",
        "Instruct",
        "Prefill",
    ),
    "vcbench.engine.model.observe": (
        "Accumulator",
        "LayerRows",
        "Statistic",
    ),
    "vcbench.engine.attention.key_shares": (
        "Columns",
        "attention_by_column",
    ),
    "vcbench.engine.rope": ("RopeTable",),
    "vcbench.engine.kv.cache": (
        "EntryCache",
        "FullCache",
        "KVCache",
    ),
    "vcbench.engine.kv.evicting": ("EvictionRule",),
    "vcbench.engine.kv.kept": (
        "KeptCache",
        "WindowCache",
    ),
    "vcbench.engine.kv.ragged": ("RaggedCache",),
    "vcbench.engine.kv.shape": ("KVShape",),
    "vcbench.engine.kv.store": ("ExactStore",),
    "vcbench.engine.kv.make": ("make_store",),
    "vcbench.engine.codes.coders": (
        "ClippedCoder",
        "Coder",
        "DirectionCoder",
        "FP8Coder",
        "UniformCoder",
    ),
    "vcbench.engine.codes.frames": (
        "Frame",
        "GroupedHeads",
        "Rotated",
    ),
    "vcbench.engine.codes.quantised": ("QuantisedCache",),
    "vcbench.engine.codes.scheme": ("Scheme",),
    "vcbench.tasks.base": (
        "Answer",
        "Exclusion",
        "Metric",
        "Prompt",
        "PromptTokenizer",
        "Question",
        "Ratio",
        "Task",
        "TaskOptions",
        "Value",
        "checked",
        "follow_up_id",
    ),
}
"""Where each name lives inside the package."""
_HOME = {name: module for module, names in HOMES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"vcbench.api offers no {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
