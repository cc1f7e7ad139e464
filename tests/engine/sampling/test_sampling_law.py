"""The law of draft-and-verify, enumerated: every outcome of the noise, each with its exact probability.

Gumbel noise of three tokens is -log of three exponentials, whose shares are uniform on a triangle. A row of logits cuts
the triangle into one region per token with straight lines; all rows that can occur at a position cut it into cells
inside which nothing changes. So one run of the real code per combination of cells, weighted by their areas, gives the
probability of every output, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.engine.decoding.scripted import ScriptedDecoder, ScriptedDraft, ScriptedFull
from vcbench.config.sampling import Sampling
from vcbench.config.schema import Arm
from vcbench.engine.decoding.levels import Span
from vcbench.engine.decoding.progress import Progress
from vcbench.engine.decoding.session import CellSetup, Parts, Prefilled, run_cell
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.engine.sampling.noise import Noise, Words
from vcbench.engine.sampling.selector import Selector
from vcbench.engine.types import Generation, Request

V = 3
PROMPT = (0, 1)
Floats = NDArray[np.float64]
ScoresOf = Callable[[Sequence[int], Floats], Floats]
"""(output so far, logits) -> logits after penalties, over temperature."""


@dataclass(frozen=True)
class World:
    """What the noise may be at one position: inside a cell of this weight every choice is the same."""

    weight: float
    shares: Floats
    """A point of the cell."""


@dataclass(frozen=True)
class Model:
    """Logits after each last token, by the full cache and by the draft cache, and how both become scores."""

    full: Tensor
    draft: Tensor
    sampling: Sampling
    scores: ScoresOf
    tokens: int
    """Those that can occur: 0 .. tokens - 1."""

    def rows(self, position: int) -> Iterator[Floats]:
        """The scores of every row that can occur at a position."""
        for output in product(range(self.tokens), repeat=position):
            for table in (self.full, self.draft)[: 1 if position == 0 else 2]:
                yield self.scores(output, table[[*PROMPT, *output][-1]].double().numpy())

    def law(self, output: Sequence[int]) -> float:
        """The probability of an output under direct sampling from the full cache: the chain rule."""
        probability = 1.0
        for i, token in enumerate(output):
            scores = self.scores(output[:i], self.full[[*PROMPT, *output[:i]][-1]].double().numpy())
            weights = np.exp(scores - scores.max())
            probability *= float(weights[token] / weights.sum())
        return probability


def unchanged(output: Sequence[int], logits: Floats) -> Floats:
    return logits / 0.7


def penalised(output: Sequence[int], logits: Floats) -> Floats:
    """Token 2 cannot occur, so that few cells are left; the others pay for every occurrence."""
    counts = np.bincount(np.array(output, np.int64), minlength=V)
    return logits - 0.75 * counts - 0.5 * (counts > 0) - np.array([0, 0, 100.0])


def tables(seed: int, contexts: int) -> tuple[Tensor, Tensor]:
    """Logits of both caches after each last token; the last tokens from `contexts` - 1 on are one context."""
    generator = torch.Generator().manual_seed(seed)
    full, noise = torch.randn((2, contexts, V), generator=generator)
    last = [min(token, contexts - 1) for token in range(V)]
    return full[last], (full + noise)[last]


MODELS = {
    "markov": Model(*tables(1, 2), Sampling(temperature=0.7), unchanged, tokens=3),
    "penalties": Model(
        *tables(3, 3),
        Sampling(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.75, logit_bias={2: -100.0}),
        penalised,
        tokens=2,
    ),
}
LENGTH = 4
"""After the first token, which nobody drafts, a round of two drafts fits."""


def area(polygon: Floats) -> float:
    """Share of the triangle that a convex polygon covers. polygon: [corners, 3], shares of the exponentials."""
    x, y = polygon[:, 0], polygon[:, 1]
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)))


def clip(polygon: Floats, plane: Floats) -> Floats:
    """The part of a polygon where plane . point >= 0."""
    kept = []
    for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        at_a, at_b = a @ plane, b @ plane
        if at_a >= 0:
            kept.append(a)
        if at_a * at_b < 0:
            kept.append(a + (b - a) * at_a / (at_a - at_b))
    return np.array(kept).reshape(-1, 3)


def worlds(rows: Iterator[Floats]) -> list[World]:
    """The cells that the rows cut the triangle into. Token i wins a row where E_i exp(-s_i) is the least."""
    cells = [np.eye(3)]
    for scores in rows:
        rates = np.exp(scores.min() - scores)
        parts = []
        for cell, winner in product(cells, range(V)):
            for other in {0, 1, 2} - {winner}:
                plane = np.zeros(V)
                plane[other], plane[winner] = rates[other], -rates[winner]
                cell = clip(cell, plane) if len(cell) else cell
            parts.append(cell)
        cells = [cell for cell in parts if len(cell) > 2 and area(cell) > 1e-15]
    return [World(area(cell), cell.mean(axis=0)) for cell in cells]


class Given(Noise):
    """Noise with these shares of the exponentials at each position."""

    def __init__(self, chosen: Sequence[World]) -> None:
        self.chosen = chosen

    def words(self, position: int, count: int) -> Words:
        below = -np.expm1(-self.chosen[position].shares)
        return (below * 2**52).astype(np.uint64) << np.uint64(12)


class TableDraft(ScriptedDraft):
    table: Tensor

    def append(self, token: int) -> Tensor:
        self.ids.append(token)
        return self.table[token]


class TableFull(ScriptedFull):
    table: Tensor

    def append(self, token: int) -> Tensor:
        self.ids.append(token)
        return self.table[token]


class TableCompressor:
    def __init__(self, table: Tensor) -> None:
        self.table = table

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        cache = TableDraft(PROMPT)
        cache.table = self.table
        return cache


def decode(model: Model, noise: Noise, arm: Arm, draft_length: int) -> Generation:
    """One run of the real loop under the given noise."""
    decoder = ScriptedDecoder()
    decoder.architecture = SimpleNamespace(vocab_size=V)
    request = Request(id="r", prompt_ids=PROMPT, max_tokens=LENGTH, sampling=model.sampling)
    cache = TableFull(PROMPT)
    cache.table = model.full
    snapshot = Prefilled(request, Prefill(cache=cast(FullCache, cache), first_logits=model.full[PROMPT[-1]]))

    def progress(wanted: Request, stream: Any, observe: Any) -> Progress:
        made = Progress(wanted, stream, observe)
        made.selector = Selector(wanted, noise)
        return made

    ended: list[Generation] = []
    setup = CellSetup(arm=arm, compressor=TableCompressor(model.draft), draft_length=draft_length)
    parts = Parts(progress=progress)
    run_cell(cast(Decoder, decoder), setup, [snapshot], on_end=ended.append, parts=parts)
    return ended[0]


def enumerate_law(
    model: Model, draft_length: int, *, coupled: bool = True
) -> tuple[dict[tuple[int, ...], float], float]:
    """The probability of each output of VeriCache, and the share of accepted drafts.

    With `coupled`, full KV must give the same output in each world.
    """
    found: dict[tuple[int, ...], float] = {}
    drafted = accepted = 0.0
    for chosen in product(*(worlds(model.rows(position)) for position in range(LENGTH))):
        weight = float(np.prod([world.weight for world in chosen]))
        ours = decode(model, Given(chosen), "vericache", draft_length)
        key = tuple(ours.token_ids)
        found[key] = found.get(key, 0.0) + weight
        drafted += weight * sum(each.drafted for each in ours.rounds)
        accepted += weight * sum(each.accepted for each in ours.rounds)
        if coupled:
            assert decode(model, Given(chosen), "full", 0).token_ids == ours.token_ids
    return found, accepted / drafted


def total_variation(model: Model, found: dict[tuple[int, ...], float]) -> float:
    """Distance of an enumerated law from direct sampling's."""
    outputs = product(range(V), repeat=LENGTH)
    return 0.5 * sum(abs(found.get(output, 0.0) - model.law(output)) for output in outputs)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("position", range(LENGTH))
def test_the_cells_make_up_the_triangle(name: str, position: int) -> None:
    found = worlds(MODELS[name].rows(position))
    assert abs(sum(world.weight for world in found) - 1) < 1e-13


@pytest.mark.parametrize("name", MODELS)
def test_direct_sampling_has_the_law_of_the_softmax(name: str) -> None:
    """One row: the areas of its regions are its probabilities."""
    model = MODELS[name]
    for last in range(V):
        scores = model.scores((), model.full[last].double().numpy())
        weights = np.exp(scores)
        for token in range(V):
            share = sum(w.weight for w in worlds(iter([scores])) if (w.shares * np.exp(-scores)).argmin() == token)
            assert abs(share - weights[token] / weights.sum()) < 1e-14


@pytest.mark.parametrize(("name", "draft_length"), [("markov", 2), ("penalties", 1), ("penalties", 2)])
def test_draft_and_verify_has_the_law_of_direct_sampling(name: str, draft_length: int) -> None:
    """A-SPEC-2, exactly in place of by chi-square."""
    found, share = enumerate_law(MODELS[name], draft_length)
    distance = total_variation(MODELS[name], found)
    print(f"{name}, k = {draft_length}: total variation {distance:.1e}, accepted {share:.3f}")

    assert distance < 1e-12
    assert 0.3 < share < 0.97


def test_penalties_that_forget_the_same_round_change_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the enumeration is known to see such a fault."""
    monkeypatch.setattr(Span, "output_before", lambda span, row: span.progress.token_ids)
    found, _ = enumerate_law(MODELS["penalties"], 2, coupled=False)

    assert total_variation(MODELS["penalties"], found) > 0.01
