"""Settings of every test; the process settings must be in place before torch, numba or Triton is imported."""

from __future__ import annotations

import os

from hypothesis import settings

from vcbench.engine import environment

environment.prepare()

import torch  # noqa: E402

if not torch.cuda.is_available():
    # Whoever imports Triton first decides for its own functions, too, whether they are interpreted.
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("vcbench", deadline=None, print_blob=True)
settings.load_profile("vcbench")
