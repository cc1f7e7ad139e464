"""Fixtures of the gate's laboratory."""

from tests.lossless.conftest import tiny_runs

__all__ = ["tiny_runs"]
