"""Whatever a file or an override holds, loading gives a configuration or a ConfigError, never another exception."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.conftest import GOOD
from vcbench.config.load import dump_config, load_config
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


def check_load(raw: bytes, *overrides: str) -> None:
    """A file that loads says, written out, the same again; one that does not is refused with places and reasons."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_bytes(raw)
        problems: tuple[Problem, ...] = ()
        config = None
        try:
            config = load_config(path, overrides)
        except ConfigError as error:
            problems = error.problems
        assert (config is None) == bool(problems)
        assert all(problem.where.startswith((f"{path}:", "--set ")) and problem.message for problem in problems)
        if config is None:
            return
        path.write_text(dump_config(config), "utf-8")
        assert replace(load_config(path), places=config.places) == config


@given(damaged())
@settings(max_examples=150, deadline=None)
def test_damaged_files(text: str) -> None:
    check_load(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_bytes(raw: bytes) -> None:
    check_load(raw)


PATHS = st.sampled_from(["name", "cells.0", "cells", "methods.small", "methods.small.factor", "tasks.0.stop", "model"])


@given(PATHS | st.text(max_size=8), PIECES | st.text(max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_override(path: str, value: str) -> None:
    check_load(GOOD.encode(), f"{path}={value}")
