"""The embedded model, for tests marked `model`."""

from __future__ import annotations

from tests.models.conftest import embedded_model

__all__ = ["embedded_model"]
