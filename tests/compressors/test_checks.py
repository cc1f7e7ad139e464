"""A method that gives wrong scores, or a cache that is none of the prompt, is refused by name, layer and shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compressors import examples, tiny
from tests.compressors.examples import ARCHITECTURE
from vcbench.compressors.base import BudgetCompressor, BudgetOptions, Compressor, CompressorOptions
from vcbench.compressors.evicting import EvictingCompressor, EvictingOptions
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.evicting import EvictionRule
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Prefill
from vcbench.errors import MethodError

TOKENS = 40
HEADS, LAYERS = ARCHITECTURE.n_kv_heads, ARCHITECTURE.n_layers


def good() -> Tensor:
    return torch.arange(HEADS * TOKENS, dtype=torch.float32).reshape(HEADS, TOKENS)


def with_nan(columns: slice) -> Tensor:
    scores = good()
    scores[-1, columns] = float("nan")
    return scores


def infinite(count: int) -> Tensor:
    scores = good()
    scores[:, :count] = float("inf")
    return scores


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "too short": (lambda: good()[:, :-1], r"scores have shape \(2, 39\); \(2, 40\) is needed"),
    "too long": (lambda: torch.cat([good(), good()], 1), r"\(2, 80\)"),
    "empty": (lambda: good()[:, :0], r"\(2, 0\)"),
    "query heads": (lambda: good().repeat(2, 1), r"\(4, 40\)"),
    "one head": (lambda: good()[:1], r"\(1, 40\)"),
    "no heads": (lambda: good()[0], r"\(40,\)"),
    "a batch": (lambda: good()[None], r"\(1, 2, 40\)"),
    "turned": (lambda: good().mT, r"\(40, 2\)"),
    "whole numbers": (lambda: good().long(), r"scores of shape \(2, 40\) are torch.int64; float32 is needed"),
    "16 bits": (lambda: good().bfloat16(), "torch.bfloat16"),
    "a mask": (lambda: good() > 3, "torch.bool"),
    "elsewhere": (lambda: good().to("meta"), r"scores of shape \(2, 40\) lie on meta, and the cache on cpu"),
    "NaN in some columns": (lambda: with_nan(slice(3, 5)), r"2 scores of shape \(2, 40\) are NaN, in 2 of 40 tokens"),
    "NaN in the last": (lambda: with_nan(slice(39, None)), "1 scores .* are NaN"),
    "all NaN": (lambda: good() * float("nan"), "80 scores .* are NaN, in 40 of 40 tokens"),
    "a list": (lambda: good().tolist(), "must be a tensor of shape"),
    "more than fit": (lambda: infinite(11), "11 tokens of a head must stay .* the budget is 10"),
}


class Scoring(BudgetCompressor[BudgetOptions]):
    """Scores that a test gives, from the second layer on."""

    Options = BudgetOptions
    summary = ""

    def __init__(self, wrong: Callable[[], Any], layer: int = 1) -> None:
        super().__init__(BudgetOptions())
        self.wrong, self.layer = wrong, layer

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        made: Tensor = self.wrong() if layer == self.layer else good()
        return made


class Evicting(EvictingCompressor[EvictingOptions]):
    Options = EvictingOptions
    summary = ""

    def __init__(self, wrong: Callable[[], Any]) -> None:
        super().__init__(EvictingOptions())
        self.wrong = wrong

    def rule(self, tokens: int) -> EvictionRule:
        return EvictionRule(budget=10, recent=0, scores="sum")

    def scores(self, prefill: Prefill, layer: int) -> Tensor:
        return good()

    def attention(self, prefill: Prefill, layer: int) -> Tensor:
        made: Tensor = self.wrong() if layer == 1 else good()
        return made


class AllAtOnce(Scoring):
    """Scores of so many layers."""

    def __init__(self, count: int) -> None:
        super().__init__(good)
        self.count = count

    def layer_scores(self, prefill: Prefill) -> Iterator[Tensor]:
        yield from (good() for _ in range(self.count))


class Own(Compressor[CompressorOptions]):
    """A cache that a test makes."""

    Options = CompressorOptions
    summary = ""
    kind = "drop"
    cache_class = KeptCache

    def __init__(self, make: Callable[[FullCache], KVCache]) -> None:
        super().__init__(CompressorOptions())
        self.make = make

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        return self.make(prefill.cache)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Any, tokens: int, element_bytes: int) -> int:
        return 1


@pytest.fixture(scope="module")
def prefill() -> Prefill:
    return examples.decoder().prefill(tiny.token_ids(TOKENS), chunk=64)


@pytest.mark.parametrize(("wrong", "says"), WRONG.values(), ids=WRONG)
def test_wrong_scores_are_refused_with_method_layer_and_shape(prefill: Prefill, wrong: Any, says: str) -> None:
    with pytest.raises(MethodError, match=f"Scoring, layer 1.*{says}"):
        Scoring(wrong).compress(prefill, seed=0)
    with pytest.raises(MethodError, match=f"Scoring, layer 0.*{says}"):
        Scoring(wrong, layer=0).compress(prefill, seed=0)
    if "must stay" not in says:
        with pytest.raises(MethodError, match=f"Evicting, layer 1.*{says}"):
            Evicting(wrong).compress(prefill, seed=0)


@pytest.mark.parametrize(("count", "says"), [(0, "of 0 layers"), (LAYERS - 1, "of 1 layers"), (LAYERS + 1, "of more")])
def test_a_wrong_number_of_layers_is_refused(prefill: Prefill, count: int, says: str) -> None:
    with pytest.raises(MethodError, match=f"AllAtOnce: gave scores {says}"):
        AllAtOnce(count).compress(prefill, seed=0)


def test_sound_scores_are_taken(prefill: Prefill) -> None:
    for sound in (good, lambda: good().double(), lambda: -infinite(40), lambda: infinite(10)):
        assert Scoring(sound).compress(prefill, seed=0).tokens == TOKENS
    assert AllAtOnce(LAYERS).compress(prefill, seed=0).tokens == TOKENS
    assert Evicting(good).compress(prefill, seed=0).tokens == TOKENS


def kept(full: FullCache, count: int = 5) -> KeptCache:
    return KeptCache.gather(full, torch.arange(count).expand(LAYERS, HEADS, -1))


def miscounted(full: FullCache) -> KVCache:
    cache = kept(full)
    cache.tokens = cache.committed = 5
    return cache


def uncommitted(full: FullCache) -> KVCache:
    cache = kept(full)
    cache.committed = 5
    return cache


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda full: full, "made a FullCache, and declares KeptCache"),
        (miscounted, "counts 5 tokens, 5 committed; the prompt has 40"),
        (uncommitted, "counts 40 tokens, 5 committed; the prompt has 40"),
        (lambda full: None, "made a NoneType"),
    ],
)
def test_a_cache_that_is_none_of_the_prompt_is_refused(prefill: Prefill, make: Any, says: str) -> None:
    with pytest.raises(MethodError, match=f"Own: .*{says}"):
        Own(make).compress(prefill, seed=0)


def test_a_sound_cache_is_given_back_as_it_is(prefill: Prefill) -> None:
    made: list[KVCache] = []

    def make(full: FullCache) -> KVCache:
        made.append(kept(full))
        return made[0]

    assert Own(make).compress(prefill, seed=0) is made[0]
