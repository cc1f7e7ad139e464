"""Settings of every test; the process settings must be in place before torch or numba is imported."""

from __future__ import annotations

from hypothesis import settings

from vcbench.engine import environment

environment.prepare()
settings.register_profile("vcbench", deadline=None, print_blob=True)
settings.load_profile("vcbench")
