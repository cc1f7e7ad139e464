"""Finds a model on this machine; never downloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vcbench.config.schema import ModelConfig
from vcbench.errors import ModelError
from vcbench.models import cache, catalog
from vcbench.models.architecture import Architecture
from vcbench.models.files import read_json
from vcbench.models.generation import FILE as GENERATION_FILE
from vcbench.models.generation import Generation, parse_generation, stop_notes
from vcbench.models.hf_config import parse_architecture
from vcbench.models.hf_rope import rope_notes
from vcbench.models.safetensors_header import read_headers, weight_files, weight_notes
from vcbench.models.tied import untied

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
"""The files of a hub repository that are fetched."""
IGNORED = ("consolidated*", "original/*", "onnx/*", "openvino/*")
"""Copies of the same weights under other names, which some repositories add."""
ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model that is complete on this machine.

    `revision` is the hub commit, or the source of a catalogue model; None for a local directory. `stop_ids` are those
    of generation_config.json, or else of config.json. `template`: what its chat template is told beside the messages.
    `stamps` tell whether the weight files are still those that were hashed. `notes`: what a user should know.
    """

    id: str
    path: Path
    revision: str | None
    architecture: Architecture
    weights_sha256: str
    stop_ids: frozenset[int]
    generation: Generation = field(default_factory=Generation)
    template: Mapping[str, Any] = field(default_factory=dict)
    stamps: tuple[cache.FileStamp, ...] = ()
    notes: tuple[str, ...] = ()

    def check_unchanged(self) -> None:
        """Raises ModelError if a weight file is not the one that was hashed. Cost: one look at each."""
        for stamp in self.stamps:
            stamp.check()


def resolve_model(model: ModelConfig) -> ModelFiles:
    """The files of a catalogue name, a Hugging Face id in the local hub cache, or a local directory.

    Raises ModelError if it is not on this machine (with the command that fetches it), unsupported or damaged.
    """
    path, revision = _locate(model)
    config_file, generation_file = path / "config.json", path / GENERATION_FILE
    try:
        if catalog.embedded(model.id) is not None:
            verify_installed(path)
        _refuse_adapter(path)
        config = read_json(config_file)
        architecture = parse_architecture(config)
        written = read_json(generation_file) if generation_file.exists() else None
        generation = parse_generation(written, config, architecture.vocab_size)
        files = weight_files(path)
        stamps = tuple(cache.FileStamp.of(file) for file in files)
        architecture, tied_notes = untied(read_headers(path), architecture)
        digest = cache.weights_sha256(files)
    except OSError as error:
        raise ModelError(f"cannot read the weights in {path}: {error.strerror or error}") from error
    except ModelError as error:
        raise ModelError(f"{model.id}: {error}") from error
    notes = [*rope_notes(config, architecture.rope), *weight_notes(path), *tied_notes, *stop_notes(generation, config)]
    found = ModelFiles(
        id=model.id,
        path=path,
        revision=revision,
        architecture=architecture,
        weights_sha256=digest,
        stop_ids=generation.stop_ids,
        generation=generation,
        template=model.template,
        stamps=stamps,
        notes=tuple(notes),
    )
    found.check_unchanged()
    return found


def verify_installed(path: Path, *, read_all: bool = False) -> bool:
    """Compares the files of an installed catalogue model with the hashes written when it was fetched.

    `read_all` reads the weights whatever their stamps say; else a file that looks untouched since is not read again.
    Returns False for a model fetched before hashes were kept. Raises ModelError on a file that is not as it was.
    """
    recorded = read_json(path / catalog.SOURCE_RECORD).get("files")
    if recorded is None:
        return False
    remedy = f"fetch the model again: vcbench model fetch {path.name} --force"
    if not isinstance(recorded, Mapping):
        raise ModelError(f"{path / catalog.SOURCE_RECORD}: `files` is not a table of hashes; {remedy}")
    present = {file.name for file in path.iterdir()} - {catalog.SOURCE_RECORD}
    for name in sorted(present | set(recorded)):
        if name not in recorded:
            raise ModelError(f"{path / name} was not there when the model was fetched; remove it, or {remedy}")
        if name not in present:
            raise ModelError(f"{path / name} is missing; {remedy}")
        if cache.file_sha256(path / name, remembered=not read_all) != recorded[name]:
            raise ModelError(f"{path / name} is not what was fetched: its SHA-256 differs; {remedy}")
    return True


def _refuse_adapter(path: Path) -> None:
    if (path / ADAPTER_FILE).exists():
        raise ModelError(
            f"{path} holds an adapter ({ADAPTER_FILE}), which transformers may add to the weights and vcbench does "
            "not; merge it into them, or remove it"
        )


def find_installed(name: str) -> Path | None:
    """The directory of a catalogue model that was fetched, or None. Its source record is written last."""
    path = cache.models_dir() / name
    return path if (path / catalog.SOURCE_RECORD).is_file() else None


def is_here(model_id: str) -> bool:
    """Whether a catalogue model is installed, or the hub cache holds a snapshot of a hub id."""
    if catalog.embedded(model_id) is not None:
        return find_installed(model_id) is not None
    return find_in_hub_cache(model_id, None) is not None


def find_in_hub_cache(model_id: str, revision: str | None) -> Path | None:
    """The newest snapshot of the revision in the local hub cache, or None; touches no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        # Without the patterns the hub's client calls every snapshot incomplete that lacks a file nobody wanted.
        path = Path(
            snapshot_download(
                model_id,
                revision=revision,
                allow_patterns=list(PATTERNS),
                ignore_patterns=list(IGNORED),
                local_files_only=True,
            )
        )
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return path if (path / "config.json").is_file() else None


def _locate(model: ModelConfig) -> tuple[Path, str | None]:
    """Directory and revision. A catalogue name comes first, then an existing directory, then the hub cache."""
    known = catalog.embedded(model.id)
    if known is not None:
        _refuse_revision(model, "a catalogue model, whose revision is fixed")
        path = find_installed(model.id)
        if path is None:
            raise ModelError(f"model {model.id} has not been fetched yet; run: vcbench model fetch {model.id}")
        return path, known.requirement
    local = Path(model.id).expanduser()
    if local.is_dir():
        _refuse_revision(model, "a local directory")
        return local.resolve(), None
    if _looks_like_path(model.id):
        raise ModelError(f"model directory {model.id} does not exist; give an existing directory, {_choices()}")
    snapshot = find_in_hub_cache(model.id, model.revision)
    if snapshot is None:
        raise ModelError(_not_here(model))
    return snapshot, snapshot.name


def _not_here(model: ModelConfig) -> str:
    if model.id.count("/") != 1:
        return f"model {model.id!r} is unknown; give {_choices()}"
    revision = f" --revision {model.revision}" if model.revision else ""
    return (
        f"model {model.id}{f' at {model.revision}' if model.revision else ''} is not on this machine; run: vcbench "
        f"model fetch {model.id}{revision}"
    )


def _choices() -> str:
    names = ", ".join(catalog.EMBEDDED)
    return f"a catalogue name ({names}), a Hugging Face id (owner/name) or a local directory"


def _refuse_revision(model: ModelConfig, what: str) -> None:
    if model.revision is not None:
        raise ModelError(f"revision {model.revision!r} does not apply to {model.id}, {what}; remove `revision`")


def _looks_like_path(model_id: str) -> bool:
    return model_id.startswith(("/", ".", "~")) or model_id.count("/") > 1 or "\\" in model_id
