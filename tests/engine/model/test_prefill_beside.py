"""A prefill beside a decode: neither changes the other's bits, wherever in a layer they alternate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.engine import tiny
from vcbench.engine.kv.shape import KVShape
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.model.linear import TiledLinear
from vcbench.engine.model.observe import Accumulator, LayerRows, Statistic

PROMPT, OTHER, CHUNK = tiny.token_ids(150, seed=1), tiny.token_ids(40, seed=2), 64
FORCED = tiny.token_ids(12, seed=3)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@dataclass(frozen=True)
class Alternating(Statistic[int]):
    """Calls `step` whenever a layer of a chunk has been projected; gathers how often."""

    step: Callable[[], None]

    def begin(self, shape: KVShape, tokens: int) -> Accumulator[int]:
        return _Steps(self.step)


class _Steps(Accumulator[int]):
    def __init__(self, step: Callable[[], None]) -> None:
        self.step, self.count = step, 0

    def add(self, rows: LayerRows) -> None:
        self.step()
        self.count += 1

    def result(self) -> int:
        return self.count


class Decoding:
    """One request, decoded token by token with its output given."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.cache = decoder, decoder.prefill(OTHER, chunk=CHUNK).cache
        self.logits: list[Tensor] = []

    def step(self) -> None:
        """One token more, if there are more."""
        if len(self.logits) < len(FORCED):
            self.logits.append(self.decoder.forward([Block(self.cache, FORCED[len(self.logits) :][:1])]))
            self.cache.commit(1)


def entries(prefill: Prefill) -> list[Tensor]:
    """All that a prefill leaves behind."""
    layers = range(prefill.cache.shape.n_layers)
    return [prefill.first_logits, *(x for layer in layers for x in prefill.cache.materialize(layer))]


@DTYPES
def test_decoding_within_a_prefill_changes_neither(dtype: torch.dtype) -> None:
    decoder = tiny.decoder(dtype=dtype)
    alone, beside = Decoding(decoder), Decoding(decoder)
    for _ in FORCED:
        alone.step()
    undisturbed = decoder.prefill(PROMPT, chunk=CHUNK)

    alternating = Alternating(beside.step)
    found = decoder.prefill(PROMPT, chunk=CHUNK, statistics=[alternating])

    assert found.statistics[alternating] == 6
    assert 0 < len(beside.logits) < len(FORCED)
    while len(beside.logits) < len(FORCED):
        beside.step()
    assert torch.equal(torch.cat(beside.logits), torch.cat(alone.logits))
    for ours, theirs in zip(entries(found), entries(undisturbed), strict=True):
        assert torch.equal(ours, theirs)


def test_a_decode_keeps_its_row_tiles_within_a_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits above may agree by luck; these are the calls that make them agree."""
    decoder = tiny.fresh_decoder(dtype=torch.bfloat16)
    beside, tiled, calls = Decoding(decoder), [], list[int]()
    product = TiledLinear.product
    monkeypatch.setattr(TiledLinear, "product", lambda self, x: calls.append(len(x)) or product(self, x))

    def step() -> None:
        before = len(calls)
        beside.step()
        tiled.extend(calls[before:])

    decoder.prefill(PROMPT, chunk=CHUNK, statistics=[Alternating(step)])

    assert tiled
    assert set(tiled) <= {8, 16, 32, 64}
    assert len(PROMPT) % CHUNK in calls
