"""Data sets of the Hugging Face hub: from its local cache if they are there, else downloaded, or refused at once.

The cache comes first, so that a data set that is here needs no network, and `hf download` on another machine is
enough. Without a network one short request tells so, instead of the minute of retries that downloaders take.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from vcbench.errors import TaskError
from vcbench.tasks.rows import Row, mapping_rows

_PROBE_TIMEOUT_S = 5.0
_SHARD = re.compile(r"(?P<stem>.*)-(?P<index>\d+)-of-(?P<count>\d+)\.\w+$")


def hub_rows(dataset: str, *, split: str, config: str | None = None, revision: str | None = None) -> Iterator[Row]:
    """The rows of one split, read by `datasets`; errors name the data set, the commit and the row.

    `config`: which of a data set's configurations, where it has several.

    Raises TaskError if the data set is neither in the cache nor within reach, has no such split or cannot be read.
    """
    directory = hub_snapshot(dataset, revision=revision)
    table = _load(directory, dataset, split, config)
    part = f"{config}, " if config else ""
    yield from mapping_rows(table, f"{dataset} at {directory.name[:12]}, {part}split {split}")


def hub_file(repo: str, filename: str, *, revision: str | None = None) -> Path:
    """One file of a data set. Raises TaskError if it is neither in the cache nor within reach."""
    from huggingface_hub import hf_hub_download

    def get(local_only: bool) -> str:
        return hf_hub_download(
            repo,
            filename,
            repo_type="dataset",
            revision=revision,
            etag_timeout=_PROBE_TIMEOUT_S,
            local_files_only=local_only,
        )

    return _get(get, repo, revision, f" {filename}")


def hub_snapshot(dataset: str, *, revision: str | None = None) -> Path:
    """The directory of all files of a data set, named by its commit. Raises TaskError as `hub_file` does."""
    from huggingface_hub import snapshot_download

    def get(local_only: bool) -> str:
        return snapshot_download(
            dataset,
            repo_type="dataset",
            revision=revision,
            etag_timeout=_PROBE_TIMEOUT_S,
            local_files_only=local_only,
        )

    directory = _get(get, dataset, revision, "")
    if missing := missing_shards([path.relative_to(directory).as_posix() for path in directory.rglob("*.*")]):
        raise TaskError(
            f"the copy of data set {dataset} in the hub cache is incomplete: {missing[0]} is missing; get the rest: "
            f"{hub_command(dataset, revision)}"
        )
    return directory


def is_cached(dataset: str, revision: str | None = None) -> bool:
    """Whether some files of a data set are in the hub's cache; no network is used."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot_download(dataset, repo_type="dataset", revision=revision, local_files_only=True)
    except (LocalEntryNotFoundError, HFValidationError):
        return False
    return True


def missing_shards(names: list[str]) -> list[str]:
    """What is missing of files that are numbered `-00000-of-00003`; older hub caches do not tell."""
    present: dict[tuple[str, int], set[int]] = defaultdict(set)
    for name in names:
        if match := _SHARD.match(name):
            present[match["stem"], int(match["count"])].add(int(match["index"]))
    return [
        f"{stem}-{index:05d}-of-{count:05d}"
        for (stem, count), found in sorted(present.items())
        for index in range(count)
        if index not in found
    ]


def _get(get: Callable[[bool], str], repo: str, revision: str | None, rest: str) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(get(True))
    except HFValidationError as error:
        raise TaskError(f"{repo!r} is not the id (owner/name) of a data set: {error}") from error
    except LocalEntryNotFoundError:
        pass
    _probe(repo, revision, rest)
    try:
        return Path(get(False))
    except HfHubHTTPError as error:
        raise TaskError(_refusal(repo, revision, error)) from error
    except OSError as error:
        raise TaskError(
            f"the download of data set {repo} stopped: {error}; what has come is kept: run the same command again"
        ) from error


def _probe(repo: str, revision: str | None, rest: str) -> None:
    """One short request, so that a missing network is told in seconds."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        raise TaskError(_unreachable(repo, revision, rest, "HF_HUB_OFFLINE is set"))
    try:
        HfApi().dataset_info(repo, revision=revision, timeout=_PROBE_TIMEOUT_S)
    except HfHubHTTPError as error:
        raise TaskError(_refusal(repo, revision, error)) from error
    except Exception as error:
        raise TaskError(_unreachable(repo, revision, rest, str(error) or type(error).__name__)) from error


def _load(directory: Path, dataset: str, split: str, config: str | None) -> Iterator[dict[str, object]]:
    try:
        import datasets
    except ImportError as error:
        raise TaskError(f"data set {dataset} needs the package datasets: pip install 'vcbench[tasks]'") from error
    try:
        return iter(datasets.load_dataset(str(directory), config, split=split))
    except Exception as error:  # The builders raise anything, from ValueError to their own.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TaskError(
            f"data set {dataset} (commit {directory.name[:12]}) gives no rows of split {split!r}: {reason}"
        ) from error


def _refusal(repo: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = f"https://huggingface.co/datasets/{repo}"
    if isinstance(error, GatedRepoError):
        return f"data set {repo} is gated: accept its licence at {page}, then run `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"the hub has no revision {revision!r} of data set {repo}; look at {page}/commits"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no data set {repo}, or it is private: check the name, or run `hf auth login`"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, EntryNotFoundError):
        return f"data set {repo} has no such file; look at {page}/tree/main ({reason})"
    return f"the hub refused data set {repo}: {reason}"


def _unreachable(repo: str, revision: str | None, rest: str, reason: str) -> str:
    return (
        f"the hub is out of reach ({reason}), and data set {repo} is not in its cache; where there is a network, run: "
        f"{hub_command(repo, revision, rest)} and bring the cache here, or name a local file as the task's `path`, or "
        "leave both out for the embedded sample"
    )


def hub_command(repo: str, revision: str | None, rest: str = "") -> str:
    """What to type where there is a network, to have a data set in the cache."""
    return f"hf download --repo-type dataset {repo}{rest}{f' --revision {revision}' if revision else ''}"
