"""Real samples that lie beside the checkout; they are read in place and never become part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

DIRECTORY = Path(__file__).resolve().parents[2] / "shared" / "data"


def real(name: str) -> Path:
    """The path of a sample. Skips the test where this machine is without it."""
    path = DIRECTORY / name
    if not path.exists():
        pytest.skip(f"the real sample {name} is not on this machine ({DIRECTORY} is the place)")
    return path
