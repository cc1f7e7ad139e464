"""The options of compressors and tasks: written beside the schema's keys, checked against the registered `Options`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vcbench import registry
from vcbench.config.marks import Node
from vcbench.config.overrides import apply_overrides
from vcbench.config.reader import BAD, Parsed, Reader, keys_of
from vcbench.errors import ConfigError


def build_options(kind: str, name: str, values: Mapping[str, Any]) -> Any:
    """The `Options` of the registered class, from the resolved values in a configuration."""
    return registry.lookup(kind, name).Options(**values)


def options_from(kind: str, name: str, settings: Sequence[str]) -> dict[str, Any]:
    """The resolved options of a registered class from texts `key=value`, as `--set` gives them.

    Raises ConfigError with everything wrong in them, UsageError for an unknown name.
    """
    cls = registry.lookup(kind, name).Options
    reader, root = Reader(), Node(value={}, where=f"{kind} {name}")
    apply_overrides(root, settings, reader.problems)
    parsed = reader.read(cls, root, f"{kind} `{name}`")
    reader.refuse_unknown(parsed, list(keys_of(cls)), f"{kind} `{name}`")
    if not reader.problems:
        try:
            return asdict(parsed.build())
        except ValueError as error:
            reader.problem(_blamed(parsed, str(error)), f"{kind} `{name}`: {error}")
    raise ConfigError(reader.problems)


def read_options(reader: Reader, parsed: Parsed, kind: str, key: str) -> None:
    """Moves the unjudged keys of `parsed` to its `options`, resolved by the class that `key` names."""
    parsed.values["options"] = BAD
    name = parsed.get(key)
    if name is None:
        return
    if not registry.known(kind, name):
        near = registry.suggest(name, registry.names(kind))
        reader.problem(parsed.place(key), f"unknown {kind} {name!r}", near)
        return
    cls = registry.lookup(kind, name).Options
    options = reader.read(cls, Node(value=parsed.rest, where=parsed.where), f"{kind} `{name}`")
    reader.refuse_unknown(options, [*keys_of(cls), *keys_of(parsed.cls)], f"{kind} `{name}`")
    if BAD in options.values.values():
        return
    try:
        parsed.values["options"] = asdict(options.build())
    except ValueError as error:
        reader.problem(_blamed(options, str(error)), f"{kind} `{name}`: {error}")


def _blamed(options: Parsed, message: str) -> str:
    """Where the first given option that the message mentions was written, else where the entry begins."""
    words = re.findall(r"\w+", message)
    return next((options.places[word] for word in words if word in options.places), options.where)
