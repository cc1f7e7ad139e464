"""The forensics' tests look into the gate's tiny runs."""

from tests.lossless.conftest import tiny_place, tiny_runs

__all__ = ["tiny_place", "tiny_runs"]
