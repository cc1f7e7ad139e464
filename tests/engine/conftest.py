"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.models.conftest import embedded_model
from vcbench.engine import environment

__all__ = ["embedded_model"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models are so small that waking a second thread takes longer than the work, on a busy machine much longer."""
    before = torch.get_num_threads()
    environment.set_threads(1)
    yield
    environment.set_threads(before)
