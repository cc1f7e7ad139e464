"""Expected Attention: its moments, its closed form, and its limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.compressors import tiny
from vcbench.compressors.expected_attention import (
    ExpectedAttention,
    ExpectedAttentionOptions,
    QueryMoments,
    expected_attention,
    rotate_by,
)
from vcbench.engine.model.decoder import Prefill
from vcbench.engine.model.observe import LayerRows, unrotate
from vcbench.engine.rope import RopeTable
from vcbench.models.architecture import Rope

TOKENS = 60


def prefilled(chunk: int = TOKENS, *, zero_queries: bool = False) -> Prefill:
    model = tiny.decoder(zero_queries=zero_queries)
    return model.prefill(tiny.token_ids(TOKENS), chunk=chunk, statistics=[QueryMoments(4)])


def plain_queries() -> Tensor:
    """Pre-RoPE queries of all tokens, [L, T, H, D], float64: rotated back one position at a time."""
    seen: list[Tensor] = []

    def keep(rows: LayerRows) -> None:
        back = [rotate_by(q.double(), rows.cos[p].double(), -rows.sin[p].double()) for p, q in enumerate(rows.q)]
        seen.append(torch.stack(back))

    decoder = tiny.decoder()
    cache = decoder.prefill(tiny.token_ids(1), chunk=1).cache
    cache.rewind(0)
    decoder.read_on(cache, tiny.token_ids(TOKENS), keep)
    return torch.stack(seen)


@pytest.mark.parametrize("chunk", [1, 7, TOKENS])
def test_moments_are_those_of_pre_rope_queries(chunk: int) -> None:
    q = plain_queries()[:, 4:].transpose(1, 2)
    mean = q.mean(2)
    off = q - mean[:, :, None]

    moments = prefilled(chunk).statistic(QueryMoments(4))

    torch.testing.assert_close(moments.mean.double(), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moments.covariance.double(), off.mT @ off / (TOKENS - 4), rtol=1e-4, atol=1e-4)


def test_scores_equal_brute_force() -> None:
    """A-DROP-1: the formula in float64, with the mean rotation as a matrix."""
    prefill, o = prefilled(), ExpectedAttentionOptions(horizon=9, epsilon=0.02)
    q, scale = plain_queries()[:, 4:], 20**0.5
    rotation = mean_rotation(TOKENS, 9)
    for layer in range(3):
        k, v, _ = (x.double() for x in prefill.cache.materialize(layer))
        shares = []
        for head in range(6):
            rows, keys = q[layer, :, head], k[head // 3, 4:]
            mean = rotation @ rows.mean(0)
            spread = rotation @ torch.cov(rows.mT, correction=0) @ rotation.mT
            shares.append(torch.softmax(keys @ mean / scale + ((keys @ spread) * keys).sum(1) / 40, dim=0))
        expected = (torch.stack(shares).unflatten(0, (2, 3)).mean(1) + 0.02) * v[:, 4:].norm(dim=-1)

        scores = ExpectedAttention(o).scores(prefill, layer)

        torch.testing.assert_close(scores[:, 4:].double(), expected, rtol=1e-4, atol=1e-7)
        assert bool(torch.isinf(scores[:, :4]).all())


def mean_rotation(first: int, count: int) -> Tensor:
    """The matrix of the mean rotation over `count` positions, [D, D], float64."""
    rope = RopeTable(Rope(theta=1000.0), 20, torch.device("cpu"))
    rope.reserve(first + count)
    total = torch.zeros(20, 20, dtype=torch.float64)
    for p in range(first, first + count):
        total += rotate_by(torch.eye(20, dtype=torch.float64), rope.cos[p].double(), rope.sin[p].double()).mT
    return total / count


def test_uniform_queries_score_the_values_norm() -> None:
    """A-DROP-2: zero queries give |v| / (L - sinks)."""
    prefill = prefilled(zero_queries=True)
    v = prefill.cache.materialize(1)[1]

    scores = ExpectedAttention(ExpectedAttentionOptions()).scores(prefill, 1)

    torch.testing.assert_close(scores[:, 4:], v[:, 4:].norm(dim=-1) / (TOKENS - 4))


def test_the_exponent_is_that_of_a_normal_expectation() -> None:
    """A-EA-1: E exp(q.k / sqrt(d)) for q ~ N(m, S) by Monte Carlo, within 1 %."""
    generator = torch.Generator().manual_seed(0)
    size = 8
    root = torch.randn((size, size), generator=generator, dtype=torch.float64) / 3
    mean, covariance = torch.randn(size, generator=generator, dtype=torch.float64) / 2, root @ root.mT
    k = torch.randn(size, generator=generator, dtype=torch.float64)
    q = mean + torch.randn((2_000_000, size), generator=generator, dtype=torch.float64) @ root.mT
    drawn = (q @ k / size**0.5).exp().mean()

    # Against a key of zero, whose exponent is 0, the softmax weight w gives back exp(z) = w / (1 - w).
    keys = torch.stack([k, torch.zeros_like(k)])[None]
    weight = expected_attention(keys, mean[None], covariance[None])[0, 0]

    assert float(weight / (1 - weight)) == pytest.approx(float(drawn), rel=0.01)


def test_without_covariance_and_one_position_it_is_the_mean_query_there() -> None:
    """A-EA-2."""
    prefill = prefilled()
    o = ExpectedAttentionOptions(horizon=1, covariance=False)
    rope = RopeTable(Rope(theta=1000.0), 20, torch.device("cpu"))
    rope.reserve(TOKENS + 1)
    mean = rotate_by(plain_queries()[0, 4:].mean(0), rope.cos[TOKENS].double(), rope.sin[TOKENS].double())
    k, v, _ = prefill.cache.materialize(0)
    shares = tiny.attention(mean[None], k[:, 4:], TOKENS)[:, 0].unflatten(0, (2, 3)).mean(1)

    scores = ExpectedAttention(o).scores(prefill, 0)[:, 4:]

    torch.testing.assert_close(scores.double(), shares * v[:, 4:].double().norm(dim=-1), rtol=1e-4, atol=1e-7)


def test_the_mean_rotation_only_shrinks() -> None:
    """A-EA-3, and the shrink of each frequency pair: A-EA-4."""
    rope = RopeTable(Rope(theta=10000.0), 128, torch.device("cpu"))
    rope.reserve(512)
    cos, sin = rope.cos[:512].mean(0), rope.sin[:512].mean(0)
    x = torch.randn(50, 128)

    assert bool((rotate_by(x, cos, sin).norm(dim=-1) <= x.norm(dim=-1)).all())
    shrink = (cos**2 + sin**2).sqrt()
    expected = {0: 0.0041, 4: 0.0037, 8: 0.0082, 16: 0.0176, 24: 0.1199, 32: 0.2146, 40: 0.8943, 48: 0.9891, 63: 0.9999}
    for pair, value in expected.items():
        assert float(shrink[pair]) == pytest.approx(value, abs=1e-3)


def test_unrotate_takes_back_a_scaled_rotation() -> None:
    """YaRN's tables scale as well."""
    rope = RopeTable(Rope(theta=1000.0, kind="yarn", factor=8.0, original_max_position=64), 20, torch.device("cpu"))
    rope.reserve(40)
    x = torch.randn(10, 3, 20)
    turned = torch.stack([rotate_by(row, rope.cos[30 + i], rope.sin[30 + i]) for i, row in enumerate(x)])

    torch.testing.assert_close(unrotate(turned, 30, rope.cos, rope.sin), x, rtol=1e-5, atol=1e-5)


def test_what_is_kept() -> None:
    """The best of each head, sinks included; A-DROP-5 and -6."""
    prefill, method = prefilled(), ExpectedAttention(ExpectedAttentionOptions(factor=4.0))
    cache = method.compress(prefill, seed=0)

    kept = tiny.positions_of(cache)
    assert [layer.tolist() for layer in kept] == [tiny.best(method.scores(prefill, layer), 15) for layer in range(3)]
    assert kept[:, :, :4].eq(torch.arange(4)).all()
    assert cache.tokens == TOKENS


@pytest.mark.parametrize("tokens", [1, 4, 5])
def test_a_prompt_of_hardly_more_than_the_sinks_is_kept(tokens: int) -> None:
    prefill = tiny.decoder().prefill(tiny.token_ids(tokens), chunk=64, statistics=[QueryMoments(4)])
    cache = ExpectedAttention(ExpectedAttentionOptions()).compress(prefill, seed=0)

    assert tiny.positions_of(cache).shape[2] == tokens


@pytest.mark.parametrize("values", [{"horizon": 0}, {"sinks": -1}, {"epsilon": -0.1}, {"factor": 0.5}])
def test_options_out_of_range(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(values))} is"):
        ExpectedAttentionOptions(**values)  # type: ignore[arg-type]
