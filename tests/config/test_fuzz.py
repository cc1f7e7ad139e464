"""Whatever a file or an override holds, loading gives a configuration or a ConfigError, never another exception."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.conftest import GOOD
from vcbench.config.load import load_config
from vcbench.errors import ConfigError, Problem

WORDS = """: - { } [ ] &a *a <<: !!int !!set !!binary | " ' # null ~ 1e400 .nan 0x1g 2024-13-45 on ? --- = %TAG @ ` ="""
PIECES = st.sampled_from(["", "\n", "  ", "\t", "\x00", "\x85", "\ud7ff", *WORDS.split(), "<<: *a", "&a ", "---\n"])


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The good file with a few cuts and insertions."""
    text = GOOD
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(PIECES | st.text(max_size=4)) + text[end:]
    return text


def _load(raw: bytes, *overrides: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_bytes(raw)
        problems: tuple[Problem, ...] = ()
        try:
            load_config(path, overrides)
        except ConfigError as error:
            problems = error.problems
        assert all(problem.where.startswith((f"{path}:", "--set ")) and problem.message for problem in problems)


@given(damaged())
@settings(max_examples=150, deadline=None)
def test_damaged_files(text: str) -> None:
    _load(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_bytes(raw: bytes) -> None:
    _load(raw)


PATHS = st.sampled_from(["name", "cells.0", "cells", "methods.small", "methods.small.factor", "tasks.0.stop", "model"])


@given(PATHS | st.text(max_size=8), PIECES | st.text(max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_override(path: str, value: str) -> None:
    _load(GOOD.encode(), f"{path}={value}")
