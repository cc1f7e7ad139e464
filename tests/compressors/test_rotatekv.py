"""RotateKV: what rotation, permutation and clipping do to errors, which tokens stay exact, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.compressors import examples, tiny
from vcbench.compressors.rotatekv import (
    ChannelSums,
    MassiveTokens,
    RotateKV,
    RotateKVOptions,
    group_size,
    heads_together,
)
from vcbench.engine.codes.frames import grouped_hadamard
from vcbench.engine.codes.packing import dequantise, quantise, quantise_clipped
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.rotation import fast_hadamard
from vcbench.engine.model.observe import LayerRows, unrotate

CHANNELS = examples.ARCHITECTURE.n_kv_heads * examples.ARCHITECTURE.head_dim
IDENTITY = RotateKVOptions(permutation="identity")


def error(x: Tensor, bits: int, clip: float | None = None) -> float:
    """Mean squared error of groups x[..., group]."""
    codes = quantise(x, bits, symmetric=False) if clip is None else quantise_clipped(x, bits, clip)
    return float((dequantise(*codes, bits, symmetric=False) - x).square().mean())


def offset_keys(size: int) -> Tensor:
    """Standard normal keys but for the means of the first four channels, which stand out."""
    keys = torch.randn((4000, size), generator=torch.Generator().manual_seed(1))
    keys[:, :4] += torch.tensor([20.0, -25.0, 15.0, 30.0])
    return keys


@pytest.mark.parametrize(("bits", "plain", "rotated"), [(2, 44.8, 1.83), (3, 3.36, 0.322), (4, 1.03, 0.070)])
def test_rotation_takes_outlier_channels_apart(bits: int, plain: float, rotated: float) -> None:
    """A-ROT-4."""
    keys = offset_keys(128)

    assert error(keys, bits) == pytest.approx(plain, rel=0.1)
    assert error(fast_hadamard(keys), bits) == pytest.approx(rotated, rel=0.1)


@pytest.mark.parametrize(
    ("bits", "errors"), [(2, [0.2529, 0.2076, 0.1718, 0.1479]), (4, [0.01011, 0.00946, 0.01263, 0.02202])]
)
def test_clipping_helps_at_two_bits_and_hurts_at_four(bits: int, errors: list[float]) -> None:
    """Groups of 128 normal numbers, their extremes times 1, 0.9, 0.8 and 0.7."""
    x = torch.randn((20_000, 128), generator=torch.Generator().manual_seed(0))

    assert [error(x, bits, clip) for clip in (1.0, 0.9, 0.8, 0.7)] == pytest.approx(errors, rel=0.01)


@pytest.mark.parametrize("clip", [0.8, 1.0])
@pytest.mark.parametrize("value", [0.0, 3.25, -7.5])
def test_a_constant_group_is_exact(clip: float, value: float) -> None:
    """A-Q-3."""
    assert error(torch.full((2, 64), value), 2, clip) == 0


def test_like_means_in_one_group_lower_the_error() -> None:
    keys = fast_hadamard(offset_keys(512))
    ordered = keys[:, keys.mean(0).argsort()]
    before, after = (error(x.unflatten(1, (4, 128)), 2) for x in (keys, ordered))

    assert after < 0.5 * before


def rows_of(ids: list[int]) -> list[LayerRows]:
    """What each layer computes for a prompt."""
    seen: list[LayerRows] = []
    decoder = examples.decoder()
    cache = decoder.prefill(ids[:1], chunk=1).cache
    cache.rewind(0)
    decoder.read_on(cache, ids, lambda rows: seen.append(copied(rows)))
    return seen


def copied(rows: LayerRows) -> LayerRows:
    return replace(rows, residual=rows.residual.clone(), k=rows.k.clone())


def test_channels_are_ordered_by_their_signed_sums() -> None:
    """A-ROT-5: a bijection in each layer."""
    samples = [tiny.token_ids(40, seed=seed) for seed in (5, 6)]
    fit = RotateKV.calibrate(RotateKVOptions(), examples.decoder(), samples)
    order = fit.tensors["order"]
    sums = torch.zeros((2, CHANNELS), dtype=torch.float64)
    for ids in samples:
        for rows in rows_of(ids):
            k = unrotate(rows.k, 0, rows.cos, rows.sin).transpose(0, 1)
            sums[rows.layer] += grouped_hadamard(k, 2).double().sum(0)

    assert torch.equal(order.sort(dim=1).values, torch.arange(CHANNELS).expand(2, -1).int())
    ordered = sums.gather(1, order.long())
    assert (ordered.diff(dim=1) >= -1e-4).all()
    assert fit.measured["spread_of_means_in_a_group"] <= fit.measured["spread_of_means_before"]


@pytest.mark.parametrize("chunk", [1, 7, 70])
def test_statistics_do_not_depend_on_chunks(chunk: int) -> None:
    ids, wanted = tiny.token_ids(70), [MassiveTokens(9), ChannelSums(2)]
    prefill = examples.decoder().prefill(ids, chunk=chunk, statistics=wanted)
    for layer, rows in enumerate(rows_of(ids)):
        entries = rows.residual.abs().flatten().topk(9).indices // rows.residual.shape[1]
        assert prefill.statistic(MassiveTokens(9))[layer].tolist() == sorted(set(entries.tolist()))
    whole = examples.decoder().prefill(ids, chunk=70, statistics=[ChannelSums(2)]).statistic(ChannelSums(2))
    torch.testing.assert_close(prefill.statistic(ChannelSums(2)), whole, rtol=0, atol=1e-3)


def test_massive_tokens_stay_exact_and_output_is_coded() -> None:
    method = RotateKV(replace(IDENTITY, bits=2, sinks=12))
    prefill = examples.prefill(tiny.token_ids(120), method)
    cache = method.compress(prefill, seed=0)
    for layer, exact in enumerate(prefill.statistic(MassiveTokens(12))):
        for ours, real in zip(cache.materialize(layer)[:2], prefill.cache.materialize(layer)[:2], strict=True):
            off = (ours - real).abs().amax((0, 2))
            assert 0 < len(exact) <= 12
            assert (off < 1e-5).nonzero().flatten().tolist() == exact.tolist()
    examples.append(cache, 70, seed=1)
    held = [x.clone() for x in cache.materialize(0)[:2]]
    cache.commit(70)
    assert (cache.materialize(0)[0][:, 120:] - held[0][:, 120:]).abs().max() > 0.01


@pytest.mark.parametrize(("bits", "limit"), [(2, 0.35), (3, 0.08), (4, 0.02)])
def test_entries_are_near_the_exact_ones(bits: int, limit: float) -> None:
    method = RotateKV(replace(IDENTITY, bits=bits, sinks=0))
    prefill = examples.prefill(tiny.token_ids(120), method)
    cache = method.compress(prefill, seed=0)
    for layer in range(2):
        for ours, real in zip(cache.materialize(layer)[:2], prefill.cache.materialize(layer)[:2], strict=True):
            assert 0 < (ours - real).square().sum() / real.square().sum() < limit


def test_bits_an_element() -> None:
    """2.25 at 2 bits with groups of 128 channels, in keys and values alike, besides sinks and permutation."""
    architecture = replace(tiny.ARCHITECTURE, n_layers=1, n_heads=4, n_kv_heads=4, head_dim=128, hidden_size=64)
    method = RotateKV(replace(IDENTITY, bits=2))
    prefill = tiny.decoder(architecture).prefill(tiny.token_ids(128), chunk=64, statistics=method.statistics)
    cache = method.compress(prefill, seed=0)
    assert isinstance(cache, QuantisedCache)
    held = cache.nbytes()

    assert 8 * (held["codes"] + held["steps"] + held["minima"]) == 2.25 * 2 * 128 * 4 * 128
    assert held["tables"] == 4 * (2 * 4 * 128 + 128 * 128)
    assert held["exact"] == len(cache.exact) * (4 + architecture.kv_bytes_per_token(4))
    assert 0 < len(cache.exact) <= 20


@pytest.mark.parametrize(
    ("heads", "head_dim", "together", "group"), [(8, 128, 4, 128), (3, 64, 1, 64), (2, 64, 2, 128)]
)
def test_settings_of_a_models_shape(heads: int, head_dim: int, together: int, group: int) -> None:
    assert heads_together(IDENTITY, heads) == together
    assert group_size(IDENTITY, heads * head_dim) == group


@pytest.mark.parametrize(
    ("options", "shape", "reason"),
    [
        ({}, {"head_dim": 80}, "a head size that is a power of two of at least 8, not 80"),
        ({"heads": 4}, {"n_kv_heads": 2, "head_dim": 64}, "cannot rotate 4 KV heads together: the model has 2"),
        ({"group": 128}, {"n_kv_heads": 3, "head_dim": 64}, "a layer's 192 key channels; 128 does not"),
    ],
)
def test_models_that_it_cannot_take(options: dict[str, int], shape: dict[str, int], reason: str) -> None:
    architecture = replace(tiny.ARCHITECTURE, **shape)

    assert reason in (RotateKV.unsupported(RotateKVOptions(**options), architecture) or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads is 3"),
        ({"group": 48}, "group is 48"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"sinks": -1}, "sinks is -1"),
        ({"permutation": "identity", "calibration": "x"}, "calibration names a file"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RotateKVOptions(**options)  # type: ignore[arg-type]


def test_a_calibration_is_asked_for_unless_channels_stay_in_order() -> None:
    assert RotateKV.calibration_need(IDENTITY) is None
    assert RotateKV.calibration_need(RotateKVOptions()) is not None
    method = RotateKV(RotateKVOptions())
    prefill = examples.prefill(tiny.token_ids(20), method)
    with pytest.raises(ValueError, match="needs a calibration"):
        method.compress(prefill, seed=0)
