"""Single values of a `config.json`, each within bounds: no number of a stranger's file may fill memory or overflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vcbench.errors import ModelError

LARGEST_CONTEXT = 2**31 - 1
LARGEST_TOKEN_ID = 2**31 - 1
SHOWN = 60


def integer(
    config: Mapping[str, Any], key: str, default: int | None = None, *, minimum: int = 1, largest: int = 2**31 - 1
) -> int:
    """The whole number under `key`. Raises ModelError if it is missing, something else, or out of bounds."""
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"config.json lacks {key}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ModelError(f"{key} is {shown(value)}; expected an integer of at least {minimum}")
    if value > largest:
        raise ModelError(f"{key} is {shown(value)}; supported: at most {largest:,}")
    return value


def number(
    config: Mapping[str, Any], key: str, default: float | None, *, above: float = 0.0, largest: float = 1e30
) -> float:
    """The number under `key`. Raises ModelError if it is missing, something else, or out of bounds."""
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"the rope parameters lack {key}")
    wanted = "a positive number" if above == 0 else f"a number above {above:g}"
    # The comparison is false for what is no number.
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > above:
        raise ModelError(f"{key} is {shown(value)}; expected {wanted}")
    if value > largest:
        raise ModelError(f"{key} is {shown(value)}; supported: at most {largest:g}")
    return float(value)


def optional_number(config: Mapping[str, Any], key: str, *, largest: float) -> float | None:
    """The number under `key`, or None where there is none. Raises ModelError as `number`."""
    return None if config.get(key) is None else number(config, key, None, largest=largest)


def flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """The truth value under `key`. Raises ModelError on all else: the text "false" would count as true."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelError(f"{key} is {shown(value)}; expected true or false")
    return value


def token_ids(config: Mapping[str, Any], key: str) -> frozenset[int]:
    """The ids under `key`: one, several or none. Raises ModelError if they are not non-negative integers."""
    value = config.get(key)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= LARGEST_TOKEN_ID:
            raise ModelError(f"{key} holds {shown(token)}; expected a token id, a list of them or null")
    return frozenset(ids)


def shown(value: Any) -> str:
    """A stranger's value for a message of one line; numbers of a thousand digits are cut."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number of thousands of digits"
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
