"""`--set a.b=c`: changes to a configuration from the command line, made before it is checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from vcbench.config.marks import Node, read_yaml
from vcbench.errors import ConfigError, Problem
from vcbench.registry import suggest


def apply_overrides(root: Node, overrides: Sequence[str], problems: list[Problem]) -> None:
    """Writes each `path=value` into `root`; a path that cannot be followed is added to `problems`."""
    for text in overrides:
        where = f"--set {text}"
        path, equals, raw = text.partition("=")
        parts = [part.strip() for part in path.split(".")]
        if not equals or not all(parts):
            problems.append(
                Problem(where=where, message="not of the form a.b=c", suggestion="e.g. --set engine.threads=2")
            )
            continue
        try:
            value = read_yaml(raw, lambda _, where=where: where, problems)  # type: ignore[misc]
        except ConfigError as error:
            problems.extend(error.problems)
            continue
        problem = _assign(root, parts, Node(value=value.value, where=where))
        if problem:
            problems.append(Problem(where=where, message=problem[0], suggestion=problem[1]))


def _assign(node: Node, parts: list[str], value: Node) -> tuple[str, str] | None:
    """Follows `parts` down from `node` and puts `value` there; a message and a suggestion where it cannot."""
    done: list[str] = []
    while True:
        if node.value is None:
            node.value = {}
        if isinstance(node.value, dict):
            key, rest = _longest_key(node.value, parts)
            if not rest:
                node.value[key] = value
                return None
            node = node.value.setdefault(key, Node(value={}, where=value.where))
        elif isinstance(node.value, list):
            key, rest = parts[0], parts[1:]
            if not (key.isascii() and key.isdigit() and int(key) < len(node.value)):
                known = [str(index) for index in range(len(node.value))]
                return f"{'.'.join(done)!r} is a list and has no item {key!r}", suggest(key, known)
            if not rest:
                node.value[int(key)] = value
                return None
            node = node.value[int(key)]
        else:
            return f"{'.'.join(done)!r} is a single value and has no part {parts[0]!r}", "shorten the path"
        done.append(key)
        parts = rest


def _longest_key(mapping: dict[str, Node], parts: list[str]) -> tuple[str, list[str]]:
    """The longest run of `parts` that is a key (names may contain dots), else the first part; and what is left."""
    for length in range(len(parts), 0, -1):
        key = ".".join(parts[:length])
        if key in mapping:
            return key, parts[length:]
    return parts[0], parts[1:]


LONGEST_NAME = 100
PLACES = ("name", "output_dir")
"""Keys that say where a run lies, and nothing about what it is."""


def name_beside(name: str, overrides: Sequence[str]) -> str:
    """The name of a run whose configuration was changed by `overrides`, beside the run of the unchanged one.

    It says what was changed (`quickstart-cells.3.draft_length-25`); the same overrides always give the same name. Where
    they give a name themselves, that is it.
    """
    keys = [text.partition("=")[0].strip() for text in overrides]
    changes = [text for text, key in zip(overrides, keys, strict=True) if key not in PLACES]
    if not changes or "name" in keys:
        return name
    words = [re.sub(r"[^A-Za-z0-9._]+", "-", change).strip("-") for change in changes]
    made = "-".join([name, *words])
    if len(made) <= LONGEST_NAME and all(words):
        return made
    digest = hashlib.sha256("\n".join(changes).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}-{digest}"
