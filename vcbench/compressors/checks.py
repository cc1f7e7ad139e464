"""What a method gives is looked at before a cache is made of it: a wrong score only makes answers quietly worse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from vcbench import registry
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.model.decoder import Prefill
from vcbench.errors import MethodError

SCORE_TYPES = (torch.float32, torch.float64)

Compress = Callable[..., KVCache]


def checked_layers(
    found: Iterable[Tensor], shape: KVShape, tokens: int, *, method: str, budget: int | None = None
) -> Iterator[Tensor]:
    """The scores of every layer, each [Hk, T] and with no NaN, one for each layer.

    Raises MethodError with the method, the layer and the shapes. Cost: a pass over the scores.

    Args:
        budget: how many of them stay, where each head has its own; what must stay has to fit.
    """
    count = 0
    for layer, scores in enumerate(found):
        if layer >= shape.n_layers:
            raise MethodError(f"{method}: gave scores of more layers than the model's {shape.n_layers}")
        yield check_scores(scores, shape, tokens, method=method, layer=layer, budget=budget)
        count += 1
    if count < shape.n_layers:
        raise MethodError(f"{method}: gave scores of {count} layers, and the model has {shape.n_layers}")


def check_scores(
    scores: Tensor, shape: KVShape, tokens: int, *, method: str, layer: int, budget: int | None = None
) -> Tensor:
    """The scores as they are. Raises MethodError as `checked_layers` does."""
    where, wanted = f"{method}, layer {layer}", (shape.n_kv_heads, tokens)
    if not isinstance(scores, Tensor):
        raise MethodError(f"{where}: scores must be a tensor of shape {wanted}, not {type(scores).__name__}")
    found = tuple(scores.shape)
    if found != wanted:
        raise MethodError(f"{where}: scores have shape {found}; {wanted} is needed, one for each KV head and token")
    if scores.dtype not in SCORE_TYPES:
        raise MethodError(f"{where}: scores of shape {found} are {scores.dtype}; float32 is needed")
    if not _same_device(scores.device, shape.device):
        raise MethodError(f"{where}: scores of shape {found} lie on {scores.device}, and the cache on {shape.device}")
    if missing := int(scores.isnan().sum()):
        columns = int(scores.isnan().any(0).sum())
        raise MethodError(f"{where}: {missing} scores of shape {found} are NaN, in {columns} of {tokens} tokens")
    if budget is not None and (most := int(scores.isposinf().sum(1).max())) > budget:
        raise MethodError(f"{where}: {most} tokens of a head must stay (infinite scores), and the budget is {budget}")
    return scores


def check_cache(cache: KVCache, prefill: Prefill, *, method: str, cache_class: type[KVCache]) -> KVCache:
    """The draft cache as it is. Raises MethodError where it is not one of the prompt, and of the class declared."""
    full = prefill.cache
    if type(cache) is not cache_class:
        raise MethodError(
            f"{method}: made a {type(cache).__name__}, and declares {cache_class.__name__} as cache_class"
        )
    if cache is full:
        raise MethodError(f"{method}: gave back the full cache itself; a draft cache must be one of its own")
    if cache.shape != full.shape:
        raise MethodError(f"{method}: the draft cache is of {cache.shape}, and the full cache of {full.shape}")
    if not cache.tokens == cache.committed == full.tokens:
        raise MethodError(
            f"{method}: the draft cache counts {cache.tokens} tokens, {cache.committed} committed; the prompt has "
            f"{full.tokens}, whichever of them are kept"
        )
    return cache


def checking(compress: Compress) -> Compress:
    """A class's `compress`, whose result is looked at."""

    @wraps(compress)
    def checked(self: Any, prefill: Prefill, *, seed: int) -> KVCache:
        name = registry.name_of("compressor", type(self))
        cache = compress(self, prefill, seed=seed)
        return check_cache(cache, prefill, method=name, cache_class=self.cache_class)

    return checked


def _same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (a.index is None or b.index is None or a.index == b.index)
