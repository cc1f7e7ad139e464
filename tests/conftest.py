"""Settings of every test; the process settings must be in place before torch, numba or Triton is imported."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.acceptance import Outcomes
from vcbench.engine import environment

environment.prepare()

import torch  # noqa: E402

if not torch.cuda.is_available():
    # Whoever imports Triton first decides for its own functions, too, whether they are interpreted.
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("vcbench", deadline=None, print_blob=True)
settings.load_profile("vcbench")


def pytest_configure(config: pytest.Config) -> None:
    """Outcomes of the tests that make the specification's checks are taken down."""
    config.pluginmanager.register(Outcomes(), "acceptance")
