"""What the bundled engine's answers depend on: this code, this machine and the model that was found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vcbench.backends.cells import UNKNOWN, Identity
from vcbench.backends.sources import FAULTS, code_sha256
from vcbench.config.schema import RunConfig
from vcbench.errors import ConfigError, Problem
from vcbench.models.files import read_bytes
from vcbench.models.store import ModelFiles

TOKENIZER_FILES = (
    "tokenizer*", "chat_template*", "additional_chat_templates/*.jinja", "special_tokens_map.json", "added_tokens.json",
    "vocab*", "merges*",
)  # fmt: skip
LARGEST_TOKENIZER_BYTES = 2**30


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
