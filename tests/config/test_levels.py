"""Levels of a cell: what may be written, what it means, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.config.conftest import GOOD
from vcbench.config.load import dump_config
from vcbench.config.schema import AdaptiveDraft, CellConfig, LevelConfig, RunConfig
from vcbench.errors import ConfigError

Load = Callable[..., RunConfig]
FULL = LevelConfig(name="full")


def cells(load: Load, *written: str) -> tuple[CellConfig, ...]:
    """The cells of the good configuration followed by others."""
    return load(GOOD.rstrip("\n") + "\n" + "".join(f"  - {cell}\n" for cell in written)).cells


def test_names_stand_for_levels_with_their_defaults(load: Load) -> None:
    """25 tokens of a method for the full cache, 8 of everything else; three must match."""
    *_, cascade, lookup, two = cells(
        load,
        "{arm: vericache, levels: [ngram, small, full]}",
        "{arm: vericache, levels: [ngram, full]}",
        "{arm: vericache, levels: [small, smaller, full]}",
    )
    ngram = LevelConfig(name="ngram", draft_length=8, min_match=3)
    assert cascade.levels == (ngram, LevelConfig(name="small", draft_length=25), FULL)
    assert cascade.drafting == cascade.levels[:2]
    assert cascade.methods == ("small",)
    assert lookup.levels == (ngram, FULL)
    assert lookup.methods == ()
    assert lookup.longest_draft == 8
    assert [level.draft_length for level in two.levels] == [8, 25, None]


def test_each_level_has_its_own_draft_length(load: Load) -> None:
    *_, cell = cells(
        load,
        "{arm: vericache, levels: [{name: ngram, draft_length: auto, min_match: 2}, "
        "{name: small, draft_length: 40}, full]}",
    )
    assert cell.levels == (
        LevelConfig(name="ngram", draft_length=AdaptiveDraft(), min_match=2),
        LevelConfig(name="small", draft_length=40),
        FULL,
    )


def test_one_method_below_the_full_cache_is_the_method_itself(load: Load) -> None:
    *_, cell = cells(load, "{arm: vericache, levels: [{name: small, draft_length: 17}, full]}")
    assert cell == CellConfig(arm="vericache", method="small", draft_length=17)
    assert cell.drafting == (LevelConfig(name="small", draft_length=17),)


def test_what_is_written_out_reads_the_same(load: Load) -> None:
    config = load(GOOD.rstrip("\n") + "\n  - {arm: vericache, levels: [ngram, small, full]}\n")
    assert load(dump_config(config)) == config


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("{arm: vericache, levels: [full]}", "must list at least one level that drafts and then `full`"),
        ("{arm: vericache, levels: [small]}", "must list at least one level that drafts and then `full`"),
        ("{arm: vericache, levels: [ngram, small]}", "must list at least one level that drafts and then `full`"),
        ("{arm: vericache, levels: [full, small, full]}", "`full` is not the last level"),
        ("{arm: vericache, levels: [small, ngram, full]}", "`ngram` cannot check drafts"),
        ("{arm: vericache, levels: [smal, full]}", "unknown level 'smal' (did you mean 'small'?)"),
        ("{arm: vericache, levels: [ngram, small, small, full]}", "level 'small' is listed twice"),
        ("{arm: vericache, levels: [ngram, {name: full, draft_length: 4}]}", "`full` drafts for nobody"),
        ("{arm: vericache, levels: [{name: small, min_match: 2}, full]}", "only `ngram` has min_match"),
        ("{arm: vericache, levels: [{name: ngram, min_match: 0}, full]}", "`min_match` must be at least 1"),
        ("{arm: vericache, levels: [{name: ngram, draft_length: 0}, full]}", "`draft_length` must be at least 1"),
        ("{arm: vericache, levels: [{draft_length: 4}, full]}", "lacks the key `name`"),
        ("{arm: vericache, levels: [3, full]}", "must be a mapping of keys, not 3"),
        ("{arm: vericache, levels: ngram}", "`levels` must be a list"),
        ("{arm: vericache, method: small, levels: [ngram, full]}", "`method` stands beside `levels`"),
        ("{arm: vericache, draft_length: 9, levels: [ngram, full]}", "`draft_length` stands beside `levels`"),
        ("{arm: lossy, levels: [ngram, full]}", "a lossy cell has no levels"),
        ("{arm: full, levels: [ngram, full]}", "a full cell has no levels"),
        ("{arm: vericache, method: ngram}", "write `levels: [ngram, full]`"),
        (
            "{arm: vericache, levels: [{name: ngram, draft_length: {min: 9, max: 3}}, full]}",
            "draft_length goes from 9 to 3",
        ),
    ],
)
def test_what_cannot_be_is_refused(load: Load, cell: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cells(load, cell)
    assert message in str(caught.value)


def test_a_method_may_not_be_called_as_a_level_is(load: Load) -> None:
    for name in ("ngram", "full"):
        with pytest.raises(ConfigError, match=f"'{name}' means another thing in `levels`"):
            load(GOOD.replace("small:", f"{name}:").replace("method: small", f"method: {name}"))


def test_two_cells_of_the_same_levels_are_one_too_many(load: Load) -> None:
    with pytest.raises(ConfigError, match="the same cell as the one at"):
        cells(
            load,
            "{arm: vericache, levels: [ngram, small, full]}",
            "{arm: vericache, levels: [{name: ngram, min_match: 3}, {name: small, draft_length: 25}, full]}",
        )
