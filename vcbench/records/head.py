"""What stands beside a run's records: configuration, provenance and manifest, each held to its form and its hash.

Since schema 3 provenance carries a checksum of its own and the hash of the configuration, so that neither can change
unnoticed, and a manifest vouches for all three files that the lossless gate reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vcbench.errors import RecordError
from vcbench.records.codec import CHECK, check_schema, plain
from vcbench.records.files import CONFIG, MANIFEST, PROVENANCE, REQUESTS, explained, json_bytes, read_json, read_regular
from vcbench.records.schema import CHECKED_SINCE, SCHEMA_VERSION

LARGEST_CONFIG = 16 * 2**20
LARGEST_TREE = 1_000_000
DEEPEST_TREE = 100
AGAIN = "restore it, or run again: the same `vcbench run` moves this run aside"
CONFIG_SHA256 = "config_sha256"

CONFIG_FORM: dict[str, type] = {
    "model": dict, "engine": dict, "tasks": list, "cells": list, "methods": dict, "metrics": dict, "sampling": dict,
}  # fmt: skip
"""Of the keys that readers look into, what each must be where it is there."""
TASK_FORM: dict[str, type] = {"name": str, "stop": list, "sampling": dict, "options": dict, "max_tokens": int}
PROVENANCE_FORM: dict[str, type] = {
    "started": str, "command": list, "git": dict, "versions": dict, "hardware": dict, "os": dict, "threads": dict,
    "environment": dict, "model": dict, "seeds": dict, "cells": list, "kernels": dict, "excluded": dict,
    "code_sha256": str, "decoding_threads": int, "injected_fault": str, CONFIG_SHA256: str,
}  # fmt: skip
MODEL_FORM: dict[str, type] = {
    "id": str, "revision": str, "weights_sha256": str, "tokenizer_sha256": str, "architecture_sha256": str,
    "vocab_size": int, "stop_ids": list, "dtype": str, "device": str,
}  # fmt: skip
WORDS = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number"}


def provenance_bytes(given: Mapping[str, Any], config: bytes) -> bytes:
    """The content of `provenance.json`: what is given, the hash of the configuration beside it, and a checksum."""
    kept = {key: value for key, value in given.items() if key != CHECK}
    rest = {**kept, "schema": SCHEMA_VERSION, CONFIG_SHA256: hashlib.sha256(config).hexdigest()}
    return json_bytes({**rest, CHECK: _checksum(rest)})


def read_provenance(path: Path) -> dict[str, Any]:
    """Where the run in a directory comes from. Raises RecordError, SchemaVersionError for another schema version."""
    file = path / PROVENANCE
    provenance = read_json(file)
    check_schema(provenance.get("schema"), str(file))
    _hold(provenance, PROVENANCE_FORM, str(file))
    model = provenance.get("model", {})
    _hold(model, MODEL_FORM, f"{file}: model")
    if not all(type(token) is int for token in model.get("stop_ids") or ()):
        raise RecordError(f"{file}: model.stop_ids must be a list of token ids; {AGAIN}")
    return provenance


def read_config(path: Path) -> dict[str, Any]:
    """The resolved configuration of the run in a directory. Raises RecordError."""
    file = path / CONFIG
    try:
        data = read_regular(file, largest=LARGEST_CONFIG)
        config = yaml.safe_load(data.decode("utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{file} is missing; the run is damaged: {AGAIN}") from None
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        raise RecordError(f"{file} cannot be read: {error}") from error
    except RecursionError:
        raise RecordError(f"{file} cannot be read: it is nested too deeply; {AGAIN}") from None
    if not isinstance(config, dict):
        raise RecordError(f"{file} must hold a mapping, found {type(config).__name__}")
    _bound(config, file)
    _hold(config, CONFIG_FORM, str(file))
    for number, task in enumerate(config.get("tasks") or ()):
        if not isinstance(task, dict):
            raise RecordError(f"{file}: tasks[{number}] must be a mapping; {AGAIN}")
        _hold(task, TASK_FORM, f"{file}: tasks[{number}]")
    return config


def head_problem(path: Path, provenance: Mapping[str, Any]) -> str:
    """Why configuration and provenance are not those that the run was begun with; empty if they are.

    Before schema 3 nothing says so but a manifest.
    """
    if provenance["schema"] < CHECKED_SINCE:
        return ""
    if provenance.get(CHECK) != _checksum({key: value for key, value in provenance.items() if key != CHECK}):
        return f"{path / PROVENANCE} is not as it was written (its checksum does not fit); {AGAIN}"
    if provenance.get(CONFIG_SHA256) != _sha256(path / CONFIG):
        return f"{path / CONFIG} is not the configuration that the run was begun with; {AGAIN}"
    return ""


def manifest_of(path: Path, records: bytes, counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """What vouches for these records, and for the configuration and provenance beside them."""
    return {
        "schema": SCHEMA_VERSION,
        "sha256": hashlib.sha256(records).hexdigest(),
        "bytes": len(records),
        "lines": sum(sum(kinds.values()) for kinds in counts.values()),
        "counts": counts,
        "files": {name: _sha256(path / name) for name in (CONFIG, PROVENANCE)},
    }


def manifest_problem(path: Path, records: bytes) -> str:
    """Why the manifest does not vouch for what is there; empty if it does. Raises SchemaVersionError."""
    try:
        manifest = read_json(path / MANIFEST)
    except RecordError as error:
        return str(error)
    schema = check_schema(manifest.get("schema"), str(path / MANIFEST))
    if manifest.get("sha256") != hashlib.sha256(records).hexdigest():
        return f"{REQUESTS} is not what it was when the run ended; the run counts as incomplete"
    if schema < CHECKED_SINCE:
        newer = read_json(path / PROVENANCE).get("schema")
        return "" if newer == schema else f"it has schema {schema}, but {PROVENANCE} has {newer}"
    stated = manifest.get("files")
    for name in (CONFIG, PROVENANCE):
        if not isinstance(stated, dict) or name not in stated:
            return f"it does not vouch for {name}; the run counts as incomplete"
        if stated[name] != _sha256(path / name):
            return f"{name} is not what it was when the run ended; the run counts as incomplete"
    return ""


def _sha256(path: Path) -> str:
    """The hash of a file. Raises RecordError where it cannot be read."""
    with explained(path, "read"):
        return hashlib.sha256(read_regular(path)).hexdigest()


def _checksum(rest: Mapping[str, Any]) -> str:
    text = json.dumps(plain(rest), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _hold(mapping: Mapping[str, Any], form: Mapping[str, type], where: str) -> None:
    """Raises RecordError where a key is there and not of its form."""
    for key, wanted in form.items():
        value = mapping.get(key)
        if value is not None and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
            raise RecordError(f"{where}: `{key}` must be {WORDS[wanted]}, found {type(value).__name__}; {AGAIN}")


def _bound(value: Any, file: Path) -> None:
    """Raises RecordError where a tree, its aliases written out, is too large or too deep for any reader."""
    left, waiting = LARGEST_TREE, [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        inner = [*item, *item.values()] if isinstance(item, dict) else item if isinstance(item, list | set) else ()
        left -= 1 + len(inner)
        if left < 0 or depth > DEEPEST_TREE:
            raise RecordError(f"{file} is larger or nested deeper than a configuration can be (aliases?); {AGAIN}")
        waiting += [(each, depth + 1) for each in inner]
