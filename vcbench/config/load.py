"""Reading and writing configurations; everything that is wrong with one is reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from vcbench.config.checks import check_feasible, check_run
from vcbench.config.marks import read_yaml
from vcbench.config.options import read_options
from vcbench.config.overrides import apply_overrides
from vcbench.config.reader import Parsed, Reader, keys_of
from vcbench.config.schema import MethodConfig, RunConfig, TaskConfig
from vcbench.errors import ConfigError, Problem
from vcbench.models.architecture import Architecture

ArchitectureOf = Callable[[str], Architecture | None]


def load_config(
    path: str | Path, overrides: Sequence[str] = (), *, architecture_of: ArchitectureOf | None = None
) -> RunConfig:
    """The configuration in the file, with `overrides` (`a.b=c`) made and every default explicit.

    Args:
        path: A YAML file.
        overrides: What `--set` was given; values are YAML, list items are named by index (`cells.1.draft_length=8`).
        architecture_of: Finds a model's architecture by its id, so that impossible cells are reported too.

    Raises:
        ConfigError: with every problem, each with its file and line.
    """
    reader = Reader()
    root = read_yaml(_read_text(Path(path)), lambda line: f"{path}:{line}", reader.problems)
    if root.value is None and not overrides:
        raise ConfigError([Problem(where=root.where, message="the file is empty", suggestion="see docs/config.md")])
    apply_overrides(root, overrides, reader.problems)
    run = reader.read(RunConfig, root, "the configuration")
    reader.refuse_unknown(run, list(keys_of(RunConfig)), "the configuration")
    for method in _parsed(run, "methods"):
        read_options(reader, method, "compressor", "compressor")
    for task in _parsed(run, "tasks"):
        read_options(reader, task, "task", "name")
    check_run(reader, run)
    model = run.get("model")
    architecture = architecture_of(model.get("id")) if architecture_of and model and model.get("id") else None
    if architecture is not None:
        check_feasible(reader, run, architecture)
    if reader.problems:
        given = [f"--set {text}" for text in overrides]
        raise ConfigError(sorted(reader.problems, key=lambda problem: _order(problem.where, f"{path}:", given)))
    run.values["places"] = _places(run)
    config: RunConfig = run.build()
    return config


def dump_config(config: RunConfig) -> str:
    """The configuration as YAML with every default written out; loading it gives an equal one."""
    text: str = yaml.safe_dump(_plain(config), sort_keys=False, width=100)
    return text


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        own = {f.name: _plain(getattr(value, f.name)) for f in fields(value) if not f.metadata.get("internal")}
        options = own.pop("options") if isinstance(value, (TaskConfig, MethodConfig)) else {}
        return {**own, **options}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = "this is a directory" if path.is_dir() else (error.strerror or str(error)).lower()
        hint = "give the path of a YAML file, e.g. configs/quickstart.yaml"
        raise ConfigError([Problem(where=str(path), message=f"cannot be read: {reason}", suggestion=hint)]) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = Problem(where=f"{path}:{line}", message="the file is not UTF-8 text", suggestion="save it as UTF-8")
        raise ConfigError([problem]) from error


def _parsed(run: Parsed, key: str) -> Iterator[Parsed]:
    value = run.get(key) or ()
    yield from value.values() if isinstance(value, dict) else value


def _places(run: Parsed) -> dict[str, str]:
    places = dict(run.places)
    for key in ("tasks", "cells"):
        places |= {f"{key}.{index}": item.where for index, item in enumerate(run.get(key))}
    return places | {f"methods.{name}": method.where for name, method in run.get("methods").items()}


def _order(where: str, prefix: str, given: list[str]) -> tuple[int, int]:
    """The file's problems by line, then those of the overrides as they were given."""
    if where in given:
        return 1, given.index(where)
    tail = where.removeprefix(prefix)
    return 0, int(tail) if tail.isdigit() else 0
