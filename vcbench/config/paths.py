"""Paths as configurations have them: relative to the working directory, or to a home directory after `~`."""

from __future__ import annotations

from pathlib import Path

from vcbench.errors import UsageError


def user_path(text: str) -> Path:
    """The path with `~` or `~name` as the home directory that it means. Raises UsageError where there is none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        head = Path(text).parts[0]
        raise UsageError(f"{text}: there is no home directory for {head}; write the path out") from None
