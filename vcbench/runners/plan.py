"""What a run will do: the cells of its matrix, each with an id that hashes everything its answers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vcbench.backends.sources import FAULTS, code_sha256, plugin_sha256
from vcbench.config.feasible import cell_obstacle, sampling_obstacle, task_obstacle, tier_obstacle
from vcbench.config.schema import AdaptiveDraft, CellConfig, DraftLength, MethodConfig, RunConfig, TaskConfig
from vcbench.engine.environment import physical_cores
from vcbench.errors import ConfigError, Problem
from vcbench.models.architecture import Architecture
from vcbench.models.files import read_bytes

if TYPE_CHECKING:
    from vcbench.calibration.base import Calibration
    from vcbench.models.store import ModelFiles

TOKENIZER_FILES = (
    "tokenizer*", "chat_template*", "additional_chat_templates/*.jinja", "special_tokens_map.json", "added_tokens.json",
    "vocab*", "merges*",
)  # fmt: skip
LARGEST_TOKENIZER_BYTES = 2**30
UNKNOWN = "unknown"
ID_FORMAT = 2
NONE: Mapping[str, Any] = MappingProxyType({})


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
class Cell:
    """One task in one arm with one method, and the method's calibration where it uses one."""

    id: str
    label: str
    config: CellConfig
    task: TaskConfig
    method: MethodConfig | None
    calibration: Calibration | None = None


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


def build_plan(
    config: RunConfig,
    *,
    architecture: Architecture,
    identity: Identity,
    calibrations: Mapping[str, Calibration] = NONE,
) -> Plan:
    """The plan of a run on a model. calibrations: by the methods' names; see `calibrations.find_calibrations`.

    Raises:
        ConfigError: naming every cell and task that the model cannot serve.
    """
    _refuse_impossible(config, architecture, identity)
    cells = [
        Cell(
            id=cell_id(config, task, cell, identity, calibrations.get(cell.method or "")),
            label=label(cell),
            config=cell,
            task=task,
            method=config.methods[cell.method] if cell.method else None,
            calibration=calibrations.get(cell.method or ""),
        )
        for task in config.tasks
        for cell in config.cells
    ]
    final = UNKNOWN not in (identity.weights_sha256, identity.tokenizer_sha256, *identity.kernels.values())
    return Plan(config=config, architecture=architecture, cells=tuple(cells), final=final)


def label(cell: CellConfig) -> str:
    """The cell in words; the same for every task."""
    tier = "on disk" if cell.full_cache == "disk" else ""
    return " ".join(filter(None, (cell.arm, cell.method, _draft(cell.draft_length), tier)))


def _draft(length: DraftLength | None) -> str:
    """`k=8`, or `k=1..40` of an adaptive one, with its cost where that is not the default."""
    if not isinstance(length, AdaptiveDraft):
        return "" if length is None else f"k={length}"
    cost = f" verify_cost={length.verify_cost:g}" if length.verify_cost != AdaptiveDraft().verify_cost else ""
    return f"k={length.min}..{length.max}{cost}"


def cell_id(
    config: RunConfig,
    task: TaskConfig,
    cell: CellConfig,
    identity: Identity,
    calibration: Calibration | None = None,
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
        "draft_length": plain_draft(cell.draft_length),
        "full_cache": cell.full_cache,
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
        depends |= {"batch_size": engine.batch_size, "threads": engine.threads or physical_cores()}
    if cell.method is not None:
        method = config.methods[cell.method]
        source = plugin_sha256("compressor", method.compressor)
        options = dict(method.options)
        depends["method"] = {"compressor": method.compressor, "options": options, "source": source}
        if calibration is not None:
            options.pop("calibration", None)
            depends["method"]["calibration"] = calibration.sha256
    canonical = json.dumps(depends, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def plain_draft(length: DraftLength | None) -> int | dict[str, Any] | None:
    """A draft length as records have it."""
    return asdict(length) if isinstance(length, AdaptiveDraft) else length


def identify(config: RunConfig, *, planning: bool = False, fault: str | None = None) -> Identity:
    """This code on this machine for this configuration; `with_model` fills in the model's own hashes.

    `fault` is what the lossless gate has broken in it on purpose. Raises ConfigError if the device is missing, unless
    it is only for `planning`. Cost: imports torch.
    """
    device, dtype = resolve_device(config, must_exist=not planning)
    code = code_sha256() if fault is None else f"{code_sha256(besides=FAULTS)} with {fault}"
    return Identity(device=device, dtype=dtype, code_sha256=code, kernels=kernels(device))


def with_model(identity: Identity, files: ModelFiles) -> Identity:
    """The identity completed by the model that was found."""
    shape = json.dumps(asdict(files.architecture), sort_keys=True, default=sorted)
    return replace(
        identity,
        weights_sha256=files.weights_sha256,
        tokenizer_sha256=tokenizer_sha256(files.path),
        architecture_sha256=hashlib.sha256(shape.encode()).hexdigest(),
        revision=files.revision,
        stop_ids=tuple(sorted(files.stop_ids)),
    )


def tokenizer_sha256(directory: Path) -> str:
    """Hash of every file that decides how text becomes ids: vocabulary, special tokens, chat template."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in TOKENIZER_FILES for path in directory.glob(pattern)}):
        if path.is_dir():
            continue
        content = read_bytes(path, largest=LARGEST_TOKENIZER_BYTES)
        digest.update(f"{path.name} {len(content)}\n".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def resolve_device(config: RunConfig, *, must_exist: bool = True) -> tuple[str, str]:
    """Device kind and dtype, `auto` decided. Raises ConfigError if CUDA is asked for and missing."""
    import torch

    present = torch.cuda.is_available()
    device = config.model.device
    if device == "auto":
        device = "cuda" if present else "cpu"
    if device == "cuda" and must_exist and not present:
        where = config.places.get("model", "model")
        raise ConfigError([Problem(where=where, message="no CUDA device is usable", suggestion="set device: auto")])
    default = "bfloat16" if device == "cuda" else "float32"
    return device, default if config.model.dtype == "auto" else config.model.dtype


def kernels(device: str) -> dict[str, str]:
    """Versions and instruction set of what computes on a device."""
    import torch

    found = {name: _version(name) for name in ("torch", "numba", "llvmlite")}
    if device == "cuda":
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else UNKNOWN
        return {**found, "triton": _version("triton"), "gpu": name, "cuda": str(torch.version.cuda)}
    import llvmlite.binding

    return {**found, "cpu": torch.backends.cpu.get_cpu_capability(), "core": llvmlite.binding.get_host_cpu_name()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _refuse_impossible(config: RunConfig, architecture: Architecture, identity: Identity) -> None:
    found = [
        (f"tasks.{i}", obstacle(task, architecture))
        for i, task in enumerate(config.tasks)
        for obstacle in (task_obstacle, sampling_obstacle)
    ]
    for i, cell in enumerate(config.cells):
        method = config.methods[cell.method] if cell.method else None
        found.append((f"cells.{i}", cell_obstacle(cell, method, architecture)))
        found.append((f"cells.{i}", tier_obstacle(cell, identity.device, identity.dtype)))
    problems = [
        Problem(where=config.places.get(path, path), message=reason, suggestion="change or remove it")
        for path, reason in found
        if reason
    ]
    if problems:
        raise ConfigError(problems)
