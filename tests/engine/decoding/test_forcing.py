"""Teacher forcing: however it is cut, rows are those of one token at a time, and caches stand where the rows end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.compressors.examples import make, state
from tests.engine import tiny
from tests.engine.cells import METHODS, prefilled, request
from vcbench.engine.decoding.forcing import ALL, force

TOKENS = {"long": tiny.token_ids(23, seed=6), "short": tiny.token_ids(5, seed=7), "none": []}


def caches(method: tuple[str, Any]) -> dict[str, Any]:
    items = {key: prefilled(request(tiny.token_ids(40, seed=8), max_tokens=30)) for key in TOKENS}
    return {key: make(method).compress(item.prefill, seed=1) for key, item in items.items()}


def rows(method: tuple[str, Any], **how: Any) -> tuple[dict[str, torch.Tensor], list[object]]:
    """All rows by key, and the caches' states after them."""
    given = caches(method)
    found: dict[str, list[torch.Tensor]] = {key: [] for key in TOKENS}
    for forced in force(tiny.decoder(), given, TOKENS, **how):
        assert forced.first == sum(map(len, found[forced.key]))
        found[forced.key].append(forced.logits)
    return {key: torch.cat(parts) for key, parts in found.items() if parts}, [state(cache) for cache in given.values()]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("width", [7, ALL])
def test_rows_do_not_depend_on_how_many_a_pass_takes(method: tuple[str, Any], width: int) -> None:
    singly, after = rows(method, rows=1)
    found, then = rows(method, rows=width)

    assert found.keys() == singly.keys() == {"long", "short"}
    assert all(torch.equal(found[key], singly[key]) for key in singly)
    assert then == after


def test_who_stops_early_finds_the_tokens_shown_and_no_more() -> None:
    given = caches(METHODS["none"])
    before = {key: cache.committed for key, cache in given.items()}
    forced = next(iter(force(tiny.decoder(), {"long": given["long"]}, {"long": TOKENS["long"]}, rows=4)))

    assert len(forced.logits) == 4
    assert given["long"].committed == given["long"].tokens == before["long"] + 4


def test_whole_blocks_past_a_horizon_are_seen_exactly_and_coded_afterwards() -> None:
    """Within the block no token is coded yet, so rows differ from those of one token at a time."""
    singly, _ = rows(METHODS["kivi"])
    whole, _ = rows(METHODS["kivi"], past_horizon=True)

    assert not torch.equal(whole["long"], singly["long"])
    assert torch.equal(whole["long"][0], singly["long"][0])
