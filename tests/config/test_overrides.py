"""`--set` wins over the file, takes YAML values and names itself in problems."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.config.conftest import GOOD
from vcbench.config.schema import RunConfig

Load = Callable[..., RunConfig]
Problems = Callable[..., list[str]]


def test_scalars_list_items_and_options(load: Load) -> None:
    config = load(
        GOOD,
        "seed=7",
        "engine.batch_size=4",
        "cells.2.draft_length=9",
        "methods.small.factor=2",
        "tasks.0.limit=null",
        'tasks.0.stop=["a, b", c]',
        "name=other",
    )
    assert config.seed == 7
    assert config.engine.batch_size == 4
    assert config.cells[2].draft_length == 9
    assert config.methods["small"].options["factor"] == 2.0
    assert config.tasks[0].limit is None
    assert config.tasks[0].stop == ("a, b", "c")
    assert config.name == "other"


def test_the_last_one_wins_and_whole_parts_may_be_given(load: Load) -> None:
    config = load(GOOD, "seed=1", "seed=2", "methods.third={compressor: probe, factor: 3}", "cells.1.method=third")
    assert config.seed == 2
    assert config.methods["third"].options["factor"] == 3.0


def test_names_with_dots(load: Load) -> None:
    text = GOOD.replace("smaller", "x-2.5")
    assert load(text, "methods.x-2.5.factor=2.5").methods["x-2.5"].options["factor"] == 2.5


def test_an_override_of_one_alias_leaves_the_other(load: Load) -> None:
    text = GOOD.replace("small: {", "small: &m {").replace(
        "smaller: {compressor: probe, factor: 8.5, mode: mean}", "b: *m"
    )
    text = text.replace("method: smaller", "method: b")
    config = load(text, "methods.b.factor=3")
    assert (config.methods["small"].options["factor"], config.methods["b"].options["factor"]) == (4.0, 3.0)


def test_a_value_may_hold_an_equals_sign(load: Load) -> None:
    assert load(GOOD, "methods.small.note=a=b").methods["small"].options["note"] == "a=b"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed", "--set seed: not of the form a.b=c"),
        ("=1", "--set =1: not of the form a.b=c"),
        ("a..b=1", "--set a..b=1: not of the form a.b=c"),
        ("cells.9.arm=full", "--set cells.9.arm=full: 'cells' is a list and has no item '9' (one of: 0, 1, 2, 3)"),
        ("cells.-1.arm=full", "--set cells.-1.arm=full: 'cells' is a list and has no item '-1'"),
        ("cells.x=1", "--set cells.x=1: 'cells' is a list and has no item 'x'"),
        ("name.x=1", "--set name.x=1: 'name' is a single value and has no part 'x'"),
        ("seed=[1", "--set seed=[1: this is not valid YAML"),
        ("seed=x", "--set seed=x: `seed` must be a whole number, not the text 'x'"),
        ("engine.threds=1", "--set engine.threds=1: unknown key `threds` in `engine` (did you mean 'threads'?)"),
        ("methods.small.factor=0.5", "--set methods.small.factor=0.5: compressor `probe`: factor must be above 1"),
        ("cells.1.method=nope", "--set cells.1.method=nope: unknown method 'nope' (one of: small, smaller)"),
    ],
)
def test_mistakes(problems: Problems, override: str, expected: str) -> None:
    found = problems(GOOD, override)
    assert found[0].startswith(expected)
    assert len(found) == 1


def test_an_empty_file_may_be_filled_by_overrides(load: Load) -> None:
    config = load("", "name=a", "model.id=tiny", "tasks=[{name: probe-task}]", "cells=[{arm: full}]")
    assert config.cells[0].arm == "full"
