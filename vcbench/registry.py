"""Names for compressors and tasks: register, look up, list; unknown names come back with near ones.

A built-in entry is a module of its own inside `vcbench.compressors` or `vcbench.tasks`; a third-party one is an entry
point of the group `vcbench.compressors` or `vcbench.tasks`. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from vcbench.errors import UsageError

KINDS = {"compressor": "vcbench.compressors", "task": "vcbench.tasks"}
RENAMED = {("task", "jsonl"): "trace"}
"""Older names, which configurations may go on using; they are listed nowhere."""
T = TypeVar("T", bound=type)
_entries: dict[tuple[str, str], type[Any]] = {}
_loaded: set[str] = set()


def register(kind: str, name: str) -> Callable[[T], T]:
    """Class decorator that makes the class available as `name`. Raises ValueError on a second class of that name."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if (kind, name) in RENAMED:
        raise ValueError(f"{kind} {name!r} is the older name of {RENAMED[(kind, name)]!r}; take another")

    def add(cls: T) -> T:
        known = _entries.get((kind, name))
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"{kind} {name!r} is registered twice: {known.__module__} and {cls.__module__}")
        _entries[(kind, name)] = cls
        return cls

    return add


def names(kind: str) -> list[str]:
    """All registered names of a kind, sorted."""
    _load(kind)
    return sorted(name for entry_kind, name in _entries if entry_kind == kind)


def known(kind: str, name: str) -> bool:
    """Whether `lookup` finds the name."""
    _load(kind)
    return (kind, RENAMED.get((kind, name), name)) in _entries


def lookup(kind: str, name: str) -> Any:
    """The class registered as `name`. Raises UsageError with the nearest names."""
    if not known(kind, name):
        raise UsageError(f"unknown {kind} {name!r}; {suggest(name, names(kind))}")
    return _entries[(kind, RENAMED.get((kind, name), name))]


def name_of(kind: str, cls: type[Any]) -> str:
    """The name that a class is registered under; the class's own where it is not."""
    return next((name for (of, name), entry in _entries.items() if of == kind and entry is cls), cls.__name__)


def suggest(word: str, choices: list[str]) -> str:
    """A phrase that names the nearest choice, or all of them."""
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(choices)}"


def _load(kind: str) -> None:
    if kind in _loaded:
        return
    package = importlib.import_module(KINDS[kind])
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{KINDS[kind]}.{module.name}")
    for entry_point in entry_points(group=KINDS[kind]):
        _load_plugin(kind, entry_point)
    _loaded.add(kind)


def _load_plugin(kind: str, entry_point: EntryPoint) -> None:
    """Imports a third-party entry. Raises UsageError if that fails or does not register what it promises."""
    package = entry_point.dist.name if entry_point.dist is not None else entry_point.value
    remedy = f"fix the package {package}, or uninstall it"
    try:
        entry_point.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{kind} {entry_point.name!r} cannot be loaded: {error!r}; {remedy}") from error
    if (kind, entry_point.name) not in _entries:
        raise UsageError(f"{entry_point.value} registers no {kind} named {entry_point.name!r}; {remedy}")
