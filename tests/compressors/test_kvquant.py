"""KVQuant: what its ranges, outliers and levels do to numbers, its bytes, and the forms of its cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors import examples, tiny
from tests.compressors.examples import append, attended, state
from vcbench.compressors.kvquant import KVQuant, KVQuantOptions
from vcbench.engine.codes.codebook import Codebooks, as_stored, channel_limits, normal_float, side_count, value_ranges
from vcbench.engine.codes.codebook_cache import NonuniformCache
from vcbench.engine.kv.cache import FullCache
from vcbench.engine.kv.stores import KVShape
from vcbench.engine.rope import RopeTable
from vcbench.models.architecture import Architecture, Rope

SIZE, HEADS = 64, 2
LLAMA_7B = Architecture(
    family="llama", vocab_size=32000, hidden_size=4096, intermediate_size=11008, n_layers=32, n_heads=32,
    n_kv_heads=32, head_dim=128, norm_eps=1e-5, max_context=131072, rope=Rope(theta=10000.0),
)  # fmt: skip
NF4 = [
    -1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626,
    0.723, 1.0,
]  # fmt: skip


def rope_table() -> RopeTable:
    return RopeTable(Rope(theta=10000.0), SIZE, torch.device("cpu"))


def books(bits: int, outliers: float, ranges: tuple[Tensor, Tensor] | None = None) -> Codebooks:
    levels = normal_float(bits).repeat(2, 1)
    both = {"keys": levels, "values": levels}
    offsets, spreads = ranges or (None, None)
    return Codebooks(bits=bits, levels=both, decoded=both, offsets=offsets, ranges=spreads, outliers=outliers)  # type: ignore[arg-type]


def random_cache(tokens: int, dtype: torch.dtype = torch.float32) -> FullCache:
    """Two layers of keys whose channels differ in mean before the rotary embedding, and heavy-tailed values."""
    generator = torch.Generator().manual_seed(4)
    plain, values, tails = torch.randn((3, 2, HEADS, tokens, SIZE), generator=generator)
    plain += 4 * torch.randn((2, HEADS, 1, SIZE), generator=generator)
    keys = rope_table().blocks.rotated(plain, 0)
    cache = FullCache(
        KVShape(
            n_layers=2, n_heads=4, n_kv_heads=HEADS, head_dim=SIZE, dtype=dtype, device=torch.device("cpu")
        )
    )  # fmt: skip
    for layer in range(2):
        v = values[layer] / tails[layer].abs().clamp(min=0.1)
        cache.write(layer, keys[layer].transpose(0, 1).to(dtype), v.transpose(0, 1).to(dtype))
    cache.advance(tokens)
    cache.commit(tokens)
    return cache


def compressed(full: FullCache, bits: int = 4, outliers: float = 0.01, sinks: int = 1) -> NonuniformCache:
    return NonuniformCache.of_prompt(full, books(bits, outliers), rope_table(), sinks)


def squared_error(full: FullCache, cache: NonuniformCache) -> tuple[float, float]:
    """Mean squared error of keys and of values, both layers."""
    errors = [
        [
            (ours - theirs).square().mean()
            for ours, theirs in zip(cache.materialize(n)[:2], full.materialize(n)[:2], strict=True)
        ]
        for n in range(2)
    ]
    keys, values = torch.tensor(errors).mean(0).tolist()
    return keys, values


@pytest.mark.parametrize(("bits", "gib"), [(4, 17.33), (3, 13.33), (2, 9.33)])
def test_the_bytes_of_llama_7b_at_128k_are_the_papers(bits: int, gib: float) -> None:
    """A-ACC-2: 17.33, 13.33 and 9.33 GiB by the paper's formula, to which our layout's savings add up.

    The paper has a 32-bit pointer a token for keys and for values; here one a block of 64 tokens and head will do. Of
    40.96 outliers among a token's 4,096 values, 40 are kept.
    """
    tokens = 131072
    vectors, width = tokens * LLAMA_7B.n_layers, LLAMA_7B.n_kv_heads * LLAMA_7B.head_dim
    paper = 2 * vectors * width * (bits + 0.01 * 32 + 32 / width + 32 / width / 2) / 8
    assert paper / 2**30 == pytest.approx(gib, abs=0.02)

    pointers = 2 * vectors * (4 - 4 * LLAMA_7B.n_kv_heads / 64)
    options = KVQuantOptions(bits=bits)  # type: ignore[arg-type]
    ours = KVQuant.estimate_bytes(options, LLAMA_7B, tokens, 2)
    assert ours == pytest.approx(paper - pointers - vectors * 0.96 * 4, rel=1e-3)


@given(
    x=st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=8, max_size=200), min_size=1, max_size=1),
    share=st.sampled_from([0.01, 0.02, 0.1]),
)
@hypothesis_settings(max_examples=60)
def test_ties_make_no_more_outliers(x: list[list[float]], share: float) -> None:
    """A-KVQ-1: a token's outliers are counted, so equal numbers cannot add to them."""
    numbers = torch.tensor(x)
    offsets, ranges, marked = value_ranges(numbers, share)
    rest = numbers[~marked]

    assert int(marked.sum()) <= 2 * side_count(numbers.shape[1], share)
    assert ((rest - offsets[0]).abs() <= ranges[0] + 1e-6).all()


def test_a_hundredth_are_outliers() -> None:
    """A-KVQ-1, of keys by channel and of values by token."""
    full = random_cache(4096)
    cache = compressed(full)
    numbers = 2 * HEADS * SIZE * 4096

    assert len(cache.k_outliers) / numbers == pytest.approx(0.01, abs=0.001)
    assert len(cache.v_outliers) / numbers == pytest.approx(
        2 * side_count(HEADS * SIZE, 0.01) / (HEADS * SIZE), abs=1e-4
    )


def test_channel_limits_leave_out_as_many_at_either_end() -> None:
    ordered = torch.arange(1000.0)[:, None].expand(-1, 3)
    low, high = channel_limits(ordered, 0.01)

    assert low.tolist() == [5.0] * 3
    assert high.tolist() == [994.0] * 3


def test_leaving_outliers_out_lowers_the_error() -> None:
    """A-KVQ-3, on values with heavy tails and, as their ranges shrink, on keys."""
    full = random_cache(512)
    for bits in (2, 3, 4):
        keys, values = squared_error(full, compressed(full, bits))
        dense_keys, dense_values = squared_error(full, compressed(full, bits, outliers=0.0))
        assert keys < dense_keys
        assert values < 0.7 * dense_values


def test_channels_before_the_rotary_embedding_are_the_better_groups() -> None:
    """The order of A-KVQ-4: the same keys, taken for unrotated ones and coded channel by channel."""
    full = random_cache(512)
    turned = FullCache(full.shape)
    for layer in range(2):
        k, v, _ = full.materialize(layer)
        turned.write(layer, rope_table().blocks.rotated(k, 0).transpose(0, 1), v.transpose(0, 1))
    turned.advance(512)
    turned.commit(512)
    for bits in (2, 3, 4):
        assert squared_error(full, compressed(full, bits))[0] < 0.5 * squared_error(turned, compressed(turned, bits))[0]


def test_a_code_stands_for_the_nearest_level() -> None:
    made = books(4, 0.0)
    scaled = torch.linspace(-1.2, 1.2, 97)
    codes = made.codes(scaled, "keys", 0)
    nearest = (scaled[:, None] - made.levels["keys"][0]).abs().argmin(1)

    assert torch.equal(codes.long(), nearest)


def test_outliers_are_exact_to_half_precision() -> None:
    """What an outlier's code misses of it is kept in float16."""
    full = random_cache(128)
    cache = compressed(full, bits=2)
    rope = rope_table().blocks
    for layer in range(2):
        exact, ours = full.materialize(layer), cache.materialize(layer)
        k, our_k = (rope.unrotated(x[0], 0) for x in (exact, ours))
        for outliers, numbers, our_numbers, by_channel in (
            (cache.k_outliers, k, our_k, True),
            (cache.v_outliers, exact[1], ours[1], False),
        ):
            missed, places, starts = outliers.of_layer(layer)
            assert len(places) > 50
            for tile in range(2 * HEADS):
                block, head = divmod(tile, HEADS)
                for i in range(int(starts[tile]), int(starts[tile + 1])):
                    one, other = divmod(int(places[i]), 64 if by_channel else SIZE)
                    channel, token = (one, other) if by_channel else (other, one)
                    at = head, block * 64 + token, channel
                    error = abs(float(our_numbers[at] - numbers[at]))
                    assert error <= 2.0**-11 * abs(float(missed[i])) + 1e-5


@pytest.mark.parametrize("sinks", [0, 1, 5, 64])
def test_first_tokens_and_the_open_block_are_exact(sinks: int) -> None:
    full = random_cache(200)
    cache = compressed(full, bits=2, sinks=sinks)
    for layer in range(2):
        for ours, theirs in zip(cache.materialize(layer)[:2], full.materialize(layer)[:2], strict=True):
            same = (ours == theirs).all(-1).all(0)
            assert same[:sinks].all()
            assert same[192:].all()
            assert not same[sinks:192].any()


def test_codes_are_made_a_block_at_a_time() -> None:
    full, cache = random_cache(260), compressed(random_cache(60))
    for tokens in range(61, 261):
        append(cache, 1, seed=tokens)
        short = FullCache(full.shape)
        short.store.copy_from(full.store, 0, 0, tokens)
        short.tokens = short.committed = tokens
        cache.commit(1, short)
        assert cache.done == tokens // 64 * 64
        assert cache.tail.nbytes() <= full.shape.token_bytes() * 128


@given(first=st.integers(1, 63), second=st.integers(1, 140))
@hypothesis_settings(max_examples=10)
def test_ranges_of_a_short_prompt_are_those_of_its_first_block(first: int, second: int) -> None:
    """Key ranges without calibration are frozen when the first tokens are coded, whoever commits them."""
    full = random_cache(203)

    def grown(start: int) -> NonuniformCache:
        part = FullCache(full.shape)
        part.store.copy_from(full.store, 0, 0, start)
        part.tokens = part.committed = start
        cache = compressed(part)
        cache.commit(203 - start, full)
        return cache

    one, other = grown(first), compressed(random_cache(203))
    append(one, 3, seed=second)
    one.roll_back()
    assert torch.equal(one.materialize(0)[0][:, :1], other.materialize(0)[0][:, :1])
    assert one.k_ranges.shape == other.k_ranges.shape == (2, HEADS, SIZE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_torch_form_attends_as_its_entries_say(dtype: torch.dtype) -> None:
    full = random_cache(150, dtype)
    cache = compressed(full, bits=3, sinks=3)
    ours = attended(cache, 2)
    for layer in range(2):
        k, _, positions = cache.materialize(layer)
        assert k.dtype == dtype
        assert positions.tolist() == [list(range(150))] * HEADS
        assert torch.equal(k[:, :3], full.materialize(layer)[0][:, :3])
    assert ours.isfinite().all()


def test_the_torch_form_holds_the_entries_of_the_kernels() -> None:
    """Attention in float64 over what the CPU form holds in float32."""
    one, other = compressed(random_cache(150), bits=3), compressed(random_cache(150, torch.float64), bits=3)
    for layer in range(2):
        for ours, theirs in zip(one.materialize(layer)[:2], other.materialize(layer)[:2], strict=True):
            moved = (ours.double() - theirs).abs() > 1e-4
            assert moved.double().mean() < 1e-2
    torch.testing.assert_close(attended(one).double(), attended(other), atol=2e-2, rtol=0)


def test_keys_far_beyond_the_calibrated_range() -> None:
    """Without outliers they become the outermost level; with them they stay what they are."""
    full = random_cache(64)
    narrow = as_stored(torch.zeros(2, HEADS, SIZE), torch.full((2, HEADS, SIZE), 0.1))
    dense = NonuniformCache.of_prompt(full, books(4, 0.0, narrow), rope_table(), 0)
    sparse = NonuniformCache.of_prompt(full, books(4, 0.01, narrow), rope_table(), 0)

    assert rope_table().blocks.unrotated(dense.materialize(0)[0], 0).abs().max() == pytest.approx(0.1, abs=1e-3)
    torch.testing.assert_close(sparse.materialize(0)[0], full.materialize(0)[0], atol=0.02, rtol=0.01)
    assert sum(sparse.nbytes().values()) > sum(dense.nbytes().values())


def test_normal_float_levels() -> None:
    """QLoRA's NF4, and the same rule at fewer bits."""
    torch.testing.assert_close(normal_float(4), torch.tensor(NF4), atol=1e-4, rtol=0)
    for bits in (2, 3):
        levels = normal_float(bits)
        assert len(levels) == 1 << bits
        assert 0.0 in levels
        assert (levels[0], levels[-1]) == (-1, 1)
        assert (levels.diff() > 0).all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"outliers": -0.1}, "give a share from 0 to 0.1"),
        ({"outliers": 0.2}, "give a share from 0 to 0.1"),
        ({"sinks": 65}, "give 0 to 64"),
        ({"codebook": "nf", "q_norm": "on"}, "nf levels have none"),
        ({"codebook": "nf", "calibration": "x"}, "which codebook nf does not use"),
    ],
)
def test_options_out_of_range(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        KVQuantOptions(**options)  # type: ignore[arg-type]


def test_a_head_too_large_for_a_place_is_refused() -> None:
    wide = replace(LLAMA_7B, head_dim=576)
    assert "head sizes up to 512" in str(KVQuant.unsupported(KVQuantOptions(), wide))


def test_what_a_calibration_is_for() -> None:
    assert KVQuant.calibration_need(KVQuantOptions(codebook="nf")) is None
    needs = [KVQuant.calibration_need(KVQuantOptions(**o)) for o in ({}, {"bits": 2}, {"outliers": 0.0})]  # type: ignore[arg-type]
    assert needs[0] == needs[1] == needs[2]
    assert KVQuant.calibration_need(KVQuantOptions(outliers=0.02)) != needs[0]
    with pytest.raises(ValueError, match="needs a calibration"):
        KVQuant(KVQuantOptions()).compress(tiny.prefill_of(tiny.random_cache(80)), seed=0)


def test_the_fit_chooses_form_weighting_and_q_norm() -> None:
    method = ("kvquant", KVQuantOptions(bits=2))
    fitted = examples.calibration(method)
    ids = tiny.token_ids(150)
    prefill = examples.decoder().prefill(ids, chunk=64)
    kinds = [
        KVQuantOptions(bits=2),
        KVQuantOptions(bits=2, weights="fisher"),
        KVQuantOptions(bits=2, q_norm="off"),
        KVQuantOptions(bits=2, outliers=0.0),
        KVQuantOptions(bits=2, codebook="nf"),
    ]
    states = [state(KVQuant(options, fitted).compress(prefill, seed=0)) for options in kinds]
    assert all(a != b for i, a in enumerate(states) for b in states[:i])
    assert states[0] == state(KVQuant(KVQuantOptions(bits=2, q_norm="on"), fitted).compress(prefill, seed=0))


def test_the_fit_lowers_the_weighted_error() -> None:
    """On text that it has seen, calibrated levels beat NormalFloat ones in the same ranges."""
    method = ("kvquant", KVQuantOptions(bits=2))
    fitted = examples.calibration(method).tensors
    for kind in ("keys", "values"):
        levels = fitted[f"levels.sparse.fisher-range.{kind}.2"]
        assert levels.shape == (2, 4)
        assert (levels.diff() > 0).all()
        assert levels.abs().max() < 1
    for form in ("dense", "sparse"):
        assert (fitted[f"range.{form}"] > 0).all()
    assert (fitted["range.sparse"] <= fitted["range.dense"]).all()
