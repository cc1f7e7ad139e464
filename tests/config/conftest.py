"""A compressor and a task that only these tests know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from vcbench import registry
from vcbench.config.load import load_config
from vcbench.config.schema import RunConfig
from vcbench.errors import ConfigError
from vcbench.models.architecture import Architecture

GOOD = """\
name: trial
model:
  id: tiny
tasks:
  - name: probe-task
    limit: 2
    max_tokens: 16
methods:
  small: {compressor: probe, factor: 4}
  smaller: {compressor: probe, factor: 8.5, mode: mean}
cells:
  - arm: full
  - {arm: lossy, method: small}
  - {arm: vericache, method: small, draft_length: 8}
  - {arm: vericache, method: smaller}
"""


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    """Options of every type that a compressor may have."""

    factor: float = field(default=2.0, metadata={"doc": "Full bytes over kept bytes."})
    budget_tokens: int | None = field(default=None, metadata={"doc": "Tokens kept.", "minimum": 1})
    mode: Literal["max", "mean"] = field(default="max", metadata={"doc": "Pooling."})
    layers: tuple[int, ...] = field(default=(), metadata={"doc": "Layers left whole."})
    exact: bool = field(default=False, metadata={"doc": "Keep all."})
    note: str = field(default="", metadata={"doc": "Free text."})

    def __post_init__(self) -> None:
        if self.factor <= 1:
            raise ValueError(f"factor must be above 1, not {self.factor}")


class Probe:
    """Fits every model but those with fewer than 8 tokens of context per unit of factor."""

    Options = ProbeOptions
    summary = "for tests"
    kind = "drop"

    @classmethod
    def unsupported(cls, options: ProbeOptions, architecture: Architecture) -> str | None:
        return "more than 8x" if options.factor > 8 and architecture.max_context < 1000 else None


@dataclass(frozen=True, kw_only=True)
class ProbeTaskOptions:
    words: int = field(default=10, metadata={"doc": "Words per prompt.", "minimum": 1})


class ProbeTask:
    Options = ProbeTaskOptions
    summary = "for tests"


ENTRIES: dict[tuple[str, str], type[Any]] = {("compressor", "probe"): Probe, ("task", "probe-task"): ProbeTask}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    for kind in registry.KINDS:
        registry.names(kind)
    registry._entries.update(ENTRIES)
    yield
    for key in ENTRIES:
        del registry._entries[key]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes `run.yaml` in a fresh working directory."""
    monkeypatch.chdir(tmp_path)

    def _write(text: str) -> Path:
        path = Path("run.yaml")
        path.write_text(text, "utf-8")
        return path

    return _write


@pytest.fixture
def load(write: Callable[[str], Path]) -> Callable[..., RunConfig]:
    """Loads a text as a configuration."""

    def _load(text: str, *overrides: str, **options: Any) -> RunConfig:
        return load_config(write(text), overrides, **options)

    return _load


@pytest.fixture
def problems(load: Callable[..., RunConfig]) -> Callable[..., list[str]]:
    """The problems of a text, as lines; fails if there are none."""

    def _problems(text: str, *overrides: Sequence[str], **options: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides, **options)
        return [str(problem) for problem in caught.value.problems]

    return _problems
