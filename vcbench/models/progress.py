"""How long work on models tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: unknown)."""


def silent(stage: str, done: int, total: int) -> None:
    """Tells nothing."""
