"""A level by itself: where a draft ends, and whose seed its cache has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from tests.engine import tiny
from tests.engine.cells import prefilled, request
from tests.engine.decoding.setups import cell
from vcbench.engine.decoding.levels import NOT_FINITE, CacheLevel, Prefilled, Scores, Span
from vcbench.engine.decoding.session import run_cell
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Prefill

SCRIPT = {"a": [5, NOT_FINITE, 7, 8], "b": [1, 2, 3, 4], "c": [NOT_FINITE, 9, 9, 9]}


class Scripted(CacheLevel):
    """Says what the script has for each request, row after row."""

    def __init__(self) -> None:
        self.said = dict.fromkeys(SCRIPT, 0)

    def score(self, spans: Sequence[Span]) -> dict[str, Scores]:
        found = {}
        for span in spans:
            found[span.key] = Scores([SCRIPT[span.key][self.said[span.key]]], torch.zeros(1, 10))
            self.said[span.key] += 1
        return found


class At:
    """A request's progress, as far as a span shows it."""

    def __init__(self, name: str) -> None:
        self.request, self.last, self.token_ids = cast(Any, type("R", (), {"id": name})()), 0, [0]


def test_a_drafter_ends_at_logits_that_are_not_finite() -> None:
    """And does not go on past them, while others do."""
    level = Scripted()
    drafts = level.propose([Span(cast(Any, At(name))) for name in SCRIPT], dict.fromkeys(SCRIPT, 4))
    assert drafts == {"a": [5], "b": [1, 2, 3, 4], "c": []}
    assert level.said == {"a": 2, "b": 4, "c": 1}


def test_every_request_has_a_seed_of_its_own() -> None:
    """The same in every batch and cell, another one for each request and for each seed of the run."""

    class Noting:
        def __init__(self) -> None:
            self.seeds: list[int] = []

        def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
            self.seeds.append(seed)
            every = torch.arange(prefill.cache.tokens).expand(
                prefill.cache.shape.n_layers, prefill.cache.shape.n_kv_heads, -1
            )
            return KeptCache.gather(prefill.cache, every)

    def seeds(names: str, run_seed: int) -> list[int]:
        noting = Noting()
        items: list[Prefilled] = [prefilled(request(tiny.token_ids(40), name)) for name in names]
        setup = cell("vericache", noting, 2, seed=run_seed)
        run_cell(tiny.decoder(), setup, items, on_end=lambda _: None)
        return noting.seeds

    first = seeds("abc", 1)
    assert len(set(first)) == 3
    assert seeds("ca", 1) == [first[2], first[0]]
    assert not set(first) & set(seeds("abc", 2))
