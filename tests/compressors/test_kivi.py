"""KIVI's schedule of what is exact and what is codes, and the error that its grouping gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.compressors import examples, tiny
from vcbench.compressors.kivi import KIVI, KIVIOptions
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kv.cache import FullCache

SIZE, RESIDUAL, GROUP = 64, 64, 32
LENGTHS = [1, RESIDUAL - 1, RESIDUAL, RESIDUAL + 1, RESIDUAL + GROUP - 1, RESIDUAL + GROUP, RESIDUAL + GROUP + 1]
OPTIONS = KIVIOptions(bits=2, group=GROUP, residual=RESIDUAL)


def random_cache(tokens: int) -> FullCache:
    keys, values = torch.randn((2, 2, 2, tokens, SIZE), generator=torch.Generator().manual_seed(1))
    return tiny.full_cache(keys, values, heads=4)


def compressed(full: FullCache, options: KIVIOptions = OPTIONS) -> QuantisedCache:
    cache = KIVI(options).compress(tiny.prefill_of(full), seed=0)
    assert isinstance(cache, QuantisedCache)
    return cache


def prefix(full: FullCache, tokens: int) -> FullCache:
    """A committed full cache of the first tokens."""
    copy = FullCache(full.shape)
    copy.store.copy_from(full.store, 0, 0, tokens)
    copy.tokens = copy.committed = tokens
    return copy


def exact_tokens(cache: QuantisedCache, full: FullCache) -> tuple[int, int]:
    """How many of the newest tokens have exact keys and values; none of the older ones has."""
    counts = []
    for kind in (0, 1):
        same = torch.stack(
            [
                (cache.materialize(layer)[kind] == full.materialize(layer)[kind][:, : cache.tokens]).all(-1).all(0)
                for layer in range(2)
            ]
        )
        assert torch.equal(same[0], same[1])
        count = int(same[0].flip(0).long().cumprod(0).sum())
        assert int(same[0].sum()) == count
        counts.append(count)
    return counts[0], counts[1]


@pytest.mark.parametrize("length", LENGTHS)
def test_residuals_follow_the_schedule_token_by_token(length: int) -> None:
    """A-KIVI-1: r_K = L mod R, flushed R at a time; r_V = min(L, R), the oldest leaving one by one.

    What is quantised differs from the exact values, so that exact values billed as codes would show.
    """
    last = length + 2 * (RESIDUAL + GROUP)
    full = random_cache(last)
    cache = compressed(prefix(full, length))
    for tokens in range(length, last + 1):
        assert cache.tokens == tokens
        assert exact_tokens(cache, full) == (tokens % RESIDUAL, min(tokens, RESIDUAL))
        if tokens < last:
            cache.commit(1, full)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("piece", [1, 7, GROUP, RESIDUAL, 1000])
def test_the_state_does_not_depend_on_how_tokens_came(length: int, piece: int) -> None:
    """A-KIVI-5: one prompt, a shorter prompt and the rest committed in pieces, all the same bits."""
    total = length + 2 * (RESIDUAL + GROUP)
    full = random_cache(total)
    cache = compressed(prefix(full, length))
    while cache.tokens < total:
        cache.commit(min(piece, total - cache.tokens), full)

    assert examples.state(cache) == examples.state(compressed(full))


def test_bytes_fall_once_the_residual_is_full() -> None:
    """Per element: bits + 32 / group for codes, 32 for what is exact."""
    full = random_cache(4 * RESIDUAL)
    for tokens, codes in ((RESIDUAL - 1, 0), (4 * RESIDUAL, (4 + 3) * RESIDUAL)):
        held = compressed(prefix(full, tokens)).nbytes()
        vectors = codes * 2 * 2
        assert held["codes"] == vectors * SIZE * 2 // 8
        assert held["steps"] == held["minima"] == vectors * SIZE // GROUP * 2
        # The values' residual, and with it the page that the keys have left.
        assert held["tail"] == RESIDUAL * full.shape.token_bytes()


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("group", [32, 64])
def test_no_group_is_ever_smaller_than_the_group(bits: int, group: int) -> None:
    """A-KIVI-6: a group of one token would be exact, and billed as codes."""
    options = KIVIOptions(bits=bits, group=group, residual=64)
    full = random_cache(256)
    cache = compressed(prefix(full, 100), options)
    while cache.tokens < 256:
        cache.commit(13 if cache.tokens + 13 <= 256 else 256 - cache.tokens, full)
    k, v, _ = cache.materialize(0)
    exact_k, exact_v, _ = full.materialize(0)
    coded = (k != exact_k)[:, :256].unflatten(1, (-1, group)), (v != exact_v)[:, :192].unflatten(2, (-1, group))

    assert coded[0].any(2).all()
    assert coded[1].any(3).all()
    for levels, values in ((k[:, :group], 1), (v[:, :1, :group], 2)):
        assert max(len(row.unique()) for row in levels.transpose(values, 2).flatten(0, 1)) <= 1 << bits


def test_keys_are_grouped_by_channel_and_values_by_token() -> None:
    """A constant channel of keys and a constant token of values are exact, whatever their neighbours do."""
    keys, values = torch.randn((2, 1, 2, 128, SIZE), generator=torch.Generator().manual_seed(1))
    keys[..., 5], values[:, :, 9] = 0.5, -2.0
    full = tiny.full_cache(keys, values, heads=4)
    k, v, _ = compressed(full).materialize(0)

    assert torch.equal(k[..., 5], keys[0, ..., 5])
    assert torch.equal(v[:, 9], values[0, :, 9])
    assert not torch.equal(k[:, 9], keys[0, :, 9])
    assert not torch.equal(v[..., 5], values[0, ..., 5])


def outlier_keys(tokens: int, size: int = 128) -> Tensor:
    """Keys with four channels far from 0, as attention's keys have them."""
    keys = torch.randn((1, 1, tokens, size), generator=torch.Generator().manual_seed(3))
    keys[..., torch.tensor([3, 40, 77, 100])] += torch.tensor([20.0, -25.0, 15.0, 30.0])
    return keys


@pytest.mark.parametrize(("bits", "relative", "others"), [(2, 0.0087, 0.155), (3, 0.0016, 0.028), (4, 0.00034, 0.0061)])
def test_grouping_by_channel_keeps_outliers_harmless(bits: int, relative: float, others: float) -> None:
    """A-KIVI-3, and by token instead the error of the other channels is a hundred times as large."""
    keys = outlier_keys(4096)
    full = tiny.full_cache(keys)
    plain = torch.ones(128, dtype=torch.bool)
    plain[[3, 40, 77, 100]] = False
    by_channel = compressed(full, KIVIOptions(bits=bits, residual=128)).materialize(0)[0]
    error = (by_channel - keys[0]).pow(2)

    assert error[..., plain].mean().item() == pytest.approx(others, rel=0.05)
    assert (error.mean() / keys.pow(2).mean()).item() == pytest.approx(relative, rel=0.05)
    scheme = Scheme(key_bits=bits, value_bits=bits, key_axis="token", key_group=128, value_group=32, symmetric=False)
    by_token = QuantisedCache.of_prompt(full, scheme).materialize(0)[0]
    assert (by_token - keys[0]).pow(2)[..., plain].mean() > 20 * others


def test_the_error_of_scores_is_that_of_the_keys() -> None:
    """A-KIVI-4: for queries from a standard normal, mean squared error of scores = |dK|^2 / (tokens * size)."""
    full = random_cache(1024)
    cache = compressed(full)
    error = cache.materialize(0)[0][0] - full.materialize(0)[0][0]
    queries = torch.randn((4000, SIZE), generator=torch.Generator().manual_seed(4))
    scores = queries @ error.T / SIZE**0.5

    assert scores.pow(2).mean().item() == pytest.approx(error.pow(2).sum().item() / (1024 * SIZE), rel=0.02)


def test_a_head_size_that_is_no_multiple_of_the_group_is_refused_in_the_plan() -> None:
    architecture = replace(examples.ARCHITECTURE, head_dim=80)

    assert "head size divisible by its group of 32; it is 80" in str(KIVI.unsupported(KIVIOptions(), architecture))
    assert KIVI.unsupported(KIVIOptions(), replace(architecture, head_dim=96)) is None


@pytest.mark.parametrize("residual", [0, 16, 33, 100])
def test_the_residual_is_a_multiple_of_the_group(residual: int) -> None:
    with pytest.raises(ValueError, match=f"residual is {residual}; give a multiple of the group of 32"):
        KIVIOptions(residual=residual)
