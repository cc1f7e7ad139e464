"""docs/config.md says what the code says, and no option hides behind a key of the schema."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcbench import registry
from vcbench.config.reader import keys_of
from vcbench.config.reference import reference
from vcbench.config.schema import MethodConfig, RunConfig, TaskConfig

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == reference(), "docs/config.md is out of date: make docs"


def test_every_key_is_explained() -> None:
    text = reference()
    for cls in (RunConfig, TaskConfig, MethodConfig):
        for name, (_, spec) in keys_of(cls).items():
            assert spec.metadata.get("doc"), f"{cls.__name__}.{name} has no doc"
            assert f"| `{name}` |" in text


@pytest.mark.parametrize(("kind", "owner"), [("compressor", MethodConfig), ("task", TaskConfig)])
def test_options_are_explained_and_clash_with_no_key(kind: str, owner: type) -> None:
    for name in registry.names(kind):
        cls = registry.lookup(kind, name)
        assert cls.summary
        options = keys_of(cls.Options)
        assert not options.keys() & keys_of(owner).keys(), f"an option of {name} has the name of a key"
        assert all(spec.metadata.get("doc") for _, spec in options.values()), name
