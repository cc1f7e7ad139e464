"""What a run will do: the cells of its matrix, each with an id that hashes everything its answers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from vcbench.backends.cells import UNKNOWN, Cell, Identity, Level, Plan
from vcbench.backends.sources import plugin_sha256
from vcbench.config.feasible import cell_obstacle, device_obstacle, sampling_obstacle, task_obstacle
from vcbench.config.schema import (
    DEFAULT_MIN_MATCH,
    AdaptiveDraft,
    Arm,
    CellConfig,
    DraftLength,
    LevelConfig,
    RunConfig,
    TaskConfig,
)
from vcbench.engine.environment import physical_cores
from vcbench.errors import ConfigError, Problem
from vcbench.models.architecture import Architecture

if TYPE_CHECKING:
    from vcbench.calibration.base import Calibration

ID_FORMAT = 2
NONE: Mapping[str, Any] = MappingProxyType({})


def build_plan(
    config: RunConfig,
    *,
    architecture: Architecture,
    identity: Identity,
    calibrations: Mapping[str, Calibration] = NONE,
    arms: Sequence[Arm] = get_args(Arm),
) -> Plan:
    """The plan of a run on a model. calibrations: by the methods' names. arms: those that the backend can decode in.

    Raises:
        ConfigError: naming every cell and task that the model or the backend cannot serve.
    """
    _refuse_impossible(config, architecture, identity, arms)
    cells = [
        Cell(
            id=cell_id(config, task, cell, identity, calibrations),
            label=label(cell),
            config=cell,
            task=task,
            levels=tuple(
                Level(config=level, method=config.methods.get(level.name), calibration=calibrations.get(level.name))
                for level in cell.drafting
            ),
        )
        for task in config.tasks
        for cell in config.cells
    ]
    final = UNKNOWN not in (identity.weights_sha256, identity.tokenizer_sha256, *identity.kernels.values())
    return Plan(config=config, architecture=architecture, cells=tuple(cells), final=final)


def label(cell: CellConfig) -> str:
    """The cell in words; the same for every task."""
    tier = "on disk" if cell.full_cache == "disk" else ""
    names = "+".join(level.name + _min_match(level) for level in cell.drafting)
    lengths = ",".join(_draft(level.draft_length) for level in cell.drafting if level.draft_length is not None)
    weights = f"{cell.draft_weights} weights" if cell.draft_weights != "full" else ""
    return " ".join(filter(None, (cell.arm, names, f"k={lengths}" if lengths else "", weights, tier)))


def _draft(length: DraftLength) -> str:
    """`8`, or `1..40` of an adaptive one, with its cost where that is not the default."""
    if not isinstance(length, AdaptiveDraft):
        return str(length)
    cost = f" verify_cost={length.verify_cost:g}" if length.verify_cost != AdaptiveDraft().verify_cost else ""
    return f"{length.min}..{length.max}{cost}"


def _min_match(level: LevelConfig) -> str:
    """`(5)` where that many tokens must match and it is not the default."""
    return "" if level.min_match in (None, DEFAULT_MIN_MATCH) else f"({level.min_match})"


def cell_id(
    config: RunConfig,
    task: TaskConfig,
    cell: CellConfig,
    identity: Identity,
    calibrations: Mapping[str, Calibration] = NONE,
) -> str:
    """16 hex digits over everything that can change the cell's answers, and over nothing else.

    Names of run and method, the directory and the number of prompts are left out. So are batch size and threads at
    `exactness: bitwise`, which makes answers independent of them; at `fast` they count. A calibration counts by its
    content, wherever its file lies.
    """
    engine = config.engine
    depends: dict[str, Any] = {
        "format": ID_FORMAT,
        "weights": identity.weights_sha256,
        "revision": identity.revision,
        "tokenizer": identity.tokenizer_sha256,
        "architecture": identity.architecture_sha256,
        "stop_ids": list(identity.stop_ids),
        "template": dict(config.model.template),
        "dtype": identity.dtype,
        "device": identity.device,
        "code": identity.code_sha256,
        "kernels": dict(identity.kernels),
        "exactness": engine.exactness,
        "prefill_chunk": engine.prefill_chunk,
        "seed": config.seed,
        "arm": cell.arm,
        "levels": [_level_facts(config, level, calibrations.get(level.name)) for level in cell.drafting],
        "full_cache": cell.full_cache,
        "draft_weights": cell.draft_weights,
        "task": {
            "name": task.name,
            "options": dict(task.options),
            "max_tokens": task.max_tokens,
            "stop": list(task.stop),
            "ignore_eos": task.ignore_eos,
            "sampling": asdict(task.sampling),
            "source": plugin_sha256("task", task.name),
        },
    }
    if engine.exactness == "fast":
        depends |= {
            "batch_size": engine.batch_size,
            "threads": engine.threads or physical_cores(),
            "refill": engine.refill,
        }
    canonical = json.dumps(depends, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _level_facts(config: RunConfig, level: LevelConfig, calibration: Calibration | None) -> dict[str, Any]:
    """What of a level its cell's answers depend on; not its name."""
    facts: dict[str, Any] = {"draft_length": plain_draft(level.draft_length)}
    method = config.methods.get(level.name)
    if method is None:
        return facts | {"min_match": level.min_match}
    options = dict(method.options)
    if calibration is not None:
        options.pop("calibration", None)
        facts["calibration"] = calibration.sha256
    source = plugin_sha256("compressor", method.compressor)
    return facts | {"compressor": method.compressor, "options": options, "source": source}


def plain_draft(length: DraftLength | None) -> int | dict[str, Any] | None:
    """A draft length as records have it."""
    return asdict(length) if isinstance(length, AdaptiveDraft) else length


def _refuse_impossible(config: RunConfig, architecture: Architecture, identity: Identity, arms: Sequence[Arm]) -> None:
    found = [
        (f"tasks.{i}", obstacle(task, architecture))
        for i, task in enumerate(config.tasks)
        for obstacle in (task_obstacle, sampling_obstacle)
    ]
    for i, cell in enumerate(config.cells):
        methods = [config.methods[name] for name in cell.methods]
        found.append((f"cells.{i}", cell_obstacle(cell, methods, architecture)))
        found.append((f"cells.{i}", device_obstacle(cell, identity.device, identity.dtype)))
        if cell.arm not in arms:
            found.append((f"cells.{i}", f"the backend serves {', '.join(arms)}, and this is {cell.arm}"))
    problems = [
        Problem(where=config.places.get(path, path), message=reason, suggestion="change or remove it")
        for path, reason in found
        if reason
    ]
    if problems:
        raise ConfigError(problems)
