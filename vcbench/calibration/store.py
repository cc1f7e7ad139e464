"""Calibrations on disk: one safetensors file each, written whole or not at all, refused when it does not belong."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vcbench.calibration.base import Calibration, CalibrationNeed, Setting
from vcbench.config.paths import user_path
from vcbench.errors import CalibrationError
from vcbench.models.cache import cache_dir

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
_KEY = "vcbench_calibration"
_HASH = "vcbench_sha256"


def calibration_path(method: str, settings: Mapping[str, Setting], weights_sha256: str) -> Path:
    """Where the calibration of a model is kept unless the user names a file."""
    text = json.dumps(dict(settings), sort_keys=True)
    return (
        cache_dir()
        / "calibrations"
        / weights_sha256[:16]
        / f"{method}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.safetensors"
    )


def make_calibration(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Calibration:
    """A calibration with its hash. facts: JSON values."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    whole = {"format": FORMAT, **facts}
    return Calibration(tensors=kept, facts=whole, sha256=_content_sha256(kept, whole))


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Writes the file at `path`, replacing what is there at once and as a whole. Raises CalibrationError."""
    from safetensors.torch import save

    metadata = {_KEY: json.dumps(dict(calibration.facts), sort_keys=True), _HASH: calibration.sha256}
    content = save(dict(calibration.tensors), metadata=metadata)
    path = Path(os.path.realpath(path))
    with _explained(path), _beside(path) as (stream, name):
        _refuse_other_than_a_file(path)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        os.fchmod(stream.fileno(), 0o644)
        name.replace(path)


def check_writable(path: Path) -> None:
    """Raises CalibrationError where no file can be written at `path`: to be said before a fit, not after it."""
    with _explained(path), _beside(path):
        _refuse_other_than_a_file(path)


def _refuse_other_than_a_file(path: Path) -> None:
    """A calibration is read back, so that it cannot go to a device or a pipe, and must not take its place either."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no regular file stands there", str(path))


@contextmanager
def _beside(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file in the directory of `path`, which is made if need be; gone afterwards unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CalibrationError(
            f"cannot write {path}: {error.strerror or error}; free space or permit writing there, or give another "
            "file with --output"
        ) from error


def load_calibration(path: Path) -> Calibration:
    """The calibration in a file. Raises CalibrationError unless it is whole, unchanged and of this format."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            facts = json.loads(metadata.get(_KEY, "null"))
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 -- no mapping
    except FileNotFoundError:
        raise CalibrationError(f"there is no calibration at {path}") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise CalibrationError(f"{path} cannot be read as a calibration ({error})") from error
    if not isinstance(facts, dict):
        raise CalibrationError(f"{path} was not written by `vcbench calibrate`")
    if facts.get("format") != FORMAT:
        raise CalibrationError(f"{path} is of calibration format {facts.get('format')}; this vcbench reads {FORMAT}")
    sha256 = _content_sha256(tensors, facts)
    if sha256 != metadata.get(_HASH):
        raise CalibrationError(f"{path} has been changed since it was written")
    return Calibration(tensors=tensors, facts=facts, sha256=sha256)


def find_calibration(method: str, need: CalibrationNeed, *, model_id: str, weights_sha256: str) -> Calibration:
    """The calibration that a method asks for on a model.

    Raises CalibrationError, naming the command that makes it, where it is missing, damaged, stale or of another model.
    """
    command = calibrate_command(method, need, model_id)
    kept = calibration_path(method, need.settings, weights_sha256)
    path = user_path(need.file) if need.file is not None else kept
    if need.file is None and not path.exists():
        raise CalibrationError(f"{method} is not calibrated for {model_id} yet; run: {command}")
    try:
        calibration = load_calibration(path)
        _check(calibration, path, method, need, weights_sha256)
    except CalibrationError as error:
        raise CalibrationError(f"{error}; run: {command}") from error
    return calibration


def calibrate_command(method: str, need: CalibrationNeed, model_id: str) -> str:
    """What to type to get the calibration."""
    words = ["vcbench", "calibrate", model_id, method]
    words += [f"--set={key}={json.dumps(value)}" for key, value in need.settings.items()]
    words += ["--output", need.file] if need.file is not None else []
    return shlex.join(words)


def _check(calibration: Calibration, path: Path, method: str, need: CalibrationNeed, weights_sha256: str) -> None:
    facts = calibration.facts
    if facts.get("method") != method:
        raise CalibrationError(f"{path} calibrates {facts.get('method')}, not {method}")
    if facts.get("version") != need.version:
        raise CalibrationError(f"{path} is stale: fit version {facts.get('version')}, this vcbench's is {need.version}")
    if facts.get("weights_sha256") != weights_sha256:
        raise CalibrationError(f"{path} was fitted on other weights ({facts.get('model')})")
    if facts.get("settings") != dict(need.settings):
        raise CalibrationError(f"{path} was fitted with {facts.get('settings')}, not {dict(need.settings)}")


def _content_sha256(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    import torch

    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True, allow_nan=False).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
