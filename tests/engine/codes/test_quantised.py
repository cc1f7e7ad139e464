"""Quantised caches: the kernel, the torch form and attention over what the codes stand for say the same."""

from __future__ import annotations

import pytest
import torch

from tests.engine.reference import attention, draw, shape_of
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.stores import KVShape, TensorStore

ALL = 4


def per_channel(bits: int, group: int, residual: int, value_group: int | None = None) -> Scheme:
    """KIVI's form."""
    return Scheme(
        key_bits=bits, value_bits=bits, key_axis="channel", key_group=group, value_group=value_group or group,
        symmetric=False, key_flush=residual, value_residual=residual,
    )  # fmt: skip


def per_token(bits: int, size: int, *, symmetric: bool = True, value_group: int = 0, residual: int = 0) -> Scheme:
    """int8's form."""
    return Scheme(
        key_bits=bits, value_bits=bits, key_axis="token", key_group=size, value_group=value_group or size,
        symmetric=symmetric, value_residual=residual,
    )  # fmt: skip


CASES = [
    (32, per_channel(2, 32, 32)),
    (64, per_channel(4, 32, 128)),
    (64, per_channel(2, 64, 64)),
    (128, per_channel(4, 128, 128)),
    (128, per_channel(2, 128, 128, value_group=32)),
    (96, per_channel(8, 32, 96)),
    (96, per_channel(2, 32, 32)),
    (96, per_channel(4, 32, 128)),
    (64, per_channel(1, 32, 32)),
    (20, per_token(8, 20)),
    (64, per_token(8, 64)),
    (64, per_token(4, 64, symmetric=False)),
    (80, per_token(2, 80, symmetric=False, value_group=16)),
    (128, per_token(4, 128, value_group=64, residual=70)),
    (32, per_token(1, 32, symmetric=False, value_group=16)),
    (48, per_token(2, 48, symmetric=False, value_group=16)),
    (64, per_channel(3, 32, 32)),
    (128, per_channel(3, 128, 128, value_group=32)),
    (20, per_token(3, 20)),
    (80, per_token(3, 80, symmetric=False, value_group=16, residual=70)),
]
LENGTHS = [1, 31, 33, 64, 128, 129, 256, 300]


def full_cache(shape: KVShape, tokens: int) -> FullCache:
    """Keys with a few large channels, as real ones have."""
    full = FullCache(shape)
    outliers = torch.where(torch.arange(shape.head_dim) % 7 == 3, 8.0, 1.0)
    for layer in range(shape.n_layers):
        k, v = (draw(tokens, shape.n_kv_heads, shape.head_dim, seed=2 * layer + i) for i in (0, 1))
        full.write(layer, k * outliers, v)
    full.advance(tokens)
    full.commit(tokens)
    return full


def attended(cache: QuantisedCache, layer: int, rows: int) -> torch.Tensor:
    """Attention of `rows` new tokens, which stay uncommitted."""
    shape = cache.shape
    for index in range(shape.n_layers):
        k, v = (draw(rows, shape.n_kv_heads, shape.head_dim, seed=20 + 2 * index + i) for i in (0, 1))
        cache.write(index, k, v)
    return cache.attend(layer, draw(rows, shape.n_heads, shape.head_dim, seed=30))


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize(("head_dim", "scheme"), CASES)
def test_attention_is_that_over_the_decoded_entries(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, scheme: Scheme, tokens: int
) -> None:
    shape = shape_of(heads=ALL, kv_heads=2, head_dim=head_dim)
    full = full_cache(shape, tokens)
    cache = QuantisedCache.of_prompt(full, scheme)
    monkeypatch.setattr("vcbench.engine.codes.quantised.make_store", TensorStore)
    in_torch = QuantisedCache.of_prompt(full, scheme)
    rows = 5
    kernel, torch_form = attended(cache, 1, rows), attended(in_torch, 1, rows)
    for either in (cache, in_torch):
        either.advance(rows)
    k, v, positions = cache.materialize(1)
    expected = attention(draw(rows, ALL, head_dim, seed=30), k, v, tokens + 1)

    torch.testing.assert_close(kernel.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch_form.double(), expected, rtol=0, atol=1e-5)
    assert torch.equal(torch.stack(in_torch.materialize(1)[:2]), torch.stack([k, v]))
    assert torch.equal(positions, torch.arange(tokens + rows).expand(2, -1))


@pytest.mark.parametrize("tokens", [33, 128, 300])
@pytest.mark.parametrize(("head_dim", "scheme"), CASES)
def test_rows_do_not_depend_on_the_width_of_a_block(head_dim: int, scheme: Scheme, tokens: int) -> None:
    """Within the horizon: beyond it the cache would have turned entries into codes in between."""
    shape = shape_of(heads=ALL, kv_heads=2, head_dim=head_dim)
    cache = QuantisedCache.of_prompt(full_cache(shape, tokens), scheme)
    rows = 9
    together = attended(cache, 0, rows)
    cache.roll_back()
    alone = []
    for row in range(rows):
        for index in range(2):
            k, v = (draw(rows, 2, head_dim, seed=20 + 2 * index + i)[row : row + 1] for i in (0, 1))
            cache.write(index, k, v)
        alone.append(cache.attend(0, draw(rows, ALL, head_dim, seed=30)[row : row + 1]))
        cache.advance(1)

    assert torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize("kind", ["pages", "tensors"])
@pytest.mark.parametrize(("head_dim", "scheme"), CASES)
def test_the_decoded_entries_are_near_the_exact_ones(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, scheme: Scheme, kind: str
) -> None:
    """Within half a step of each group, and not equal: equal would mean that nothing was quantised."""
    if kind == "tensors":
        monkeypatch.setattr("vcbench.engine.codes.quantised.make_store", TensorStore)
    full = full_cache(shape_of(heads=ALL, kv_heads=2, head_dim=head_dim), 300)
    cache = QuantisedCache.of_prompt(full, scheme)
    for layer in range(2):
        for kind_index, done in ((0, scheme.quantised_keys(300)), (1, scheme.quantised_values(300))):
            exact, ours = full.materialize(layer)[kind_index], cache.materialize(layer)[kind_index]
            assert torch.equal(ours[:, done:], exact[:, done:])
            error = (ours - exact)[:, :done].abs()
            assert error.max() > 0
            group = head_dim if kind_index or scheme.key_axis == "token" else 1
            spread = exact[:, :done].amax(2 if group > 1 else 1, True) - exact[:, :done].amin(
                2 if group > 1 else 1, True
            )
            levels = (1 << ((scheme.key_bits, scheme.value_bits)[kind_index] - scheme.symmetric)) - 1
            assert (error <= spread / levels * 0.51 + 0.01).all()


@pytest.mark.parametrize(("head_dim", "scheme"), [case for case in CASES if case[1].key_flush > 1])
def test_a_prompt_with_nothing_to_quantise_attends_as_the_full_cache_does(head_dim: int, scheme: Scheme) -> None:
    tokens = min(scheme.key_flush - 1, scheme.value_residual)
    shape = shape_of(heads=ALL, kv_heads=2, head_dim=head_dim)
    full = full_cache(shape, tokens)
    cache = QuantisedCache.of_prompt(full, scheme)
    ours = attended(cache, 1, 1)
    for layer in range(2):
        full.write(layer, *(draw(1, 2, head_dim, seed=20 + 2 * layer + i) for i in (0, 1)))

    assert torch.equal(ours, full.attend(1, draw(1, ALL, head_dim, seed=30)))


@pytest.mark.parametrize("scheme", [per_channel(4, 32, 32), per_channel(2, 64, 128), per_token(8, 64)])
@pytest.mark.parametrize("tokens", [5, 64, 127, 128, 200])
def test_the_horizon_is_as_long_as_one_by_one_changes_nothing(scheme: Scheme, tokens: int) -> None:
    """`horizon` rows in one pass see what committing them one by one would have shown; one more would not."""
    shape = shape_of(heads=ALL, kv_heads=2, head_dim=64)
    cache = QuantisedCache.of_prompt(full_cache(shape, tokens), scheme)
    limit = cache.horizon()
    codes = [(scheme.quantised_keys(tokens + i), scheme.quantised_values(tokens + i)) for i in range(limit + 1)]

    assert limit >= 1
    assert len(set(codes[:limit])) == 1
    assert codes[limit] != codes[0]
