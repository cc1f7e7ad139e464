"""The full cache: what it holds, and how it returns to a snapshot."""

from __future__ import annotations

import pytest
import torch

from tests.compressors.examples import append, attended, held_bytes, state
from tests.engine.reference import shape_of
from vcbench.engine.kv.cache import FullCache


def filled(tokens: int, dtype: torch.dtype = torch.float32) -> FullCache:
    cache = FullCache(shape_of(dtype=dtype))
    append(cache, tokens, seed=1)
    cache.commit(tokens)
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 64, 100, 256])
@pytest.mark.parametrize("more", [1, 63, 64, 300])
def test_rewinding_gives_back_the_snapshot_and_its_memory(tokens: int, more: int, dtype: torch.dtype) -> None:
    cache = filled(tokens, dtype)
    rows = attended(cache)
    cache.rewind(tokens)
    held = cache.nbytes()
    append(cache, more, seed=5)
    cache.commit(more // 2)
    cache.rewind(tokens)

    assert cache.tokens == cache.committed == tokens
    assert cache.nbytes() == held == {"kv": held_bytes(cache)}
    assert torch.equal(attended(cache), rows)


def test_rewinding_forward_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot rewind to 11: the cache holds 10 tokens"):
        filled(10).rewind(11)


def test_rejected_tokens_leave_nothing() -> None:
    straight, drafted = filled(60), filled(60)
    append(drafted, 9, seed=3)
    drafted.commit(0)
    for cache in (straight, drafted):
        append(cache, 7, seed=4)
        cache.commit(5)

    assert state(drafted) == state(straight)
