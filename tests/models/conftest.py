"""Fixtures of the models tests; nothing outside the test's own cache directory is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models import tiny
from vcbench.config.schema import ModelConfig
from vcbench.errors import ModelError
from vcbench.models import catalog
from vcbench.models.store import ModelFiles, resolve_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}


@pytest.fixture
def llama_config() -> dict[str, Any]:
    return dict(LLAMA)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory for vcbench and for the hub."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(directory))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return directory


@pytest.fixture(scope="session")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def tiny_catalogue(tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> catalog.EmbeddedModel:
    """The catalogue holds `tiny` alone."""
    entry = tiny.embedded(tiny_wheel)
    monkeypatch.setattr(catalog, "EMBEDDED", {"tiny": entry})
    return entry


@pytest.fixture(scope="session")
def embedded_model() -> ModelFiles:
    """SmolLM2, if it has been fetched into the user's own cache."""
    try:
        return resolve_model(ModelConfig(id="smollm2-135m"))
    except ModelError as error:
        pytest.skip(str(error))
