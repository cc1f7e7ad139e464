"""Frames: exact both ways, and the kernel, the torch form and attention over what the codes stand for say the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.engine.codes.test_quantised import attended, full_cache, per_token
from tests.engine.reference import attention, draw, shape_of
from vcbench.engine.codes.frames import Frame, GroupedHeads, Turned, grouped_hadamard
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.rotation import fast_hadamard, hadamard, random_rotation
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.kv.stores import TensorStore
from vcbench.engine.rope import RopeTable
from vcbench.models.architecture import Rope

HEADS, KV_HEADS, SIZE = 8, 4, 32
SHAPE = shape_of(heads=HEADS, kv_heads=KV_HEADS, head_dim=SIZE)


def rope(head_dim: int = SIZE) -> RopeTable:
    return RopeTable(Rope(theta=1000.0), head_dim, torch.device("cpu"))


def order(channels: int = KV_HEADS * SIZE, layers: int = 2) -> torch.Tensor:
    """A random permutation for each layer."""
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randperm(channels, generator=generator) for _ in range(layers)])


FRAMES: dict[str, Callable[[], Frame]] = {
    "plain": Frame,
    "plain-channels": Frame,
    "turned": lambda: Turned(random_rotation("hadamard", SIZE, 0)),
    "grouped-4": lambda: GroupedHeads(rope(), order(), together=4, group=64),
    "grouped-1": lambda: GroupedHeads(rope(), order(), together=1, group=32),
}
EXACT = [torch.tensor([0, 1, 63, 64, 130]), torch.tensor([5])]
SCHEMES = {
    "plain": per_token(4, SIZE, symmetric=False),
    "plain-channels": Scheme(
        key_bits=3, value_bits=4, key_axis="channel", key_group=32, value_group=16, symmetric=True, key_flush=32
    ),
    "turned": per_token(3, SIZE),
    "grouped-4": Scheme(key_bits=3, value_bits=2, key_axis="token", key_group=64, value_group=32, symmetric=False),
    "grouped-1": per_token(2, SIZE, symmetric=False, residual=70),
}
frames = pytest.mark.parametrize("name", FRAMES)


@frames
def test_a_frame_is_exact_both_ways(name: str) -> None:
    """A-ROT-2 and -3: with no code between, entries come back, and scores and results are those of plain entries."""
    frame = FRAMES[name]()
    k, q, v = draw(KV_HEADS, 50, SIZE), draw(HEADS, 3, SIZE, seed=1), draw(KV_HEADS, 50, SIZE, seed=2)
    for layer in range(2):
        coded = frame.coded(frame.turned(k, "keys")[None], slice(layer, layer + 1), 7)[0]
        assert coded.shape == (frame.coded_shape(SHAPE)[0], 50, frame.coded_shape(SHAPE)[1])
        stored = frame.stored(coded, layer, 7)
        torch.testing.assert_close(frame.turned_back(stored, "keys"), k, rtol=0, atol=5e-6)
        scores = torch.einsum("hid,hjd->hij", frame.turned(q, "keys"), stored.repeat_interleave(2, 0))
        plain = torch.einsum("hid,hjd->hij", q, k.repeat_interleave(2, 0))
        torch.testing.assert_close(scores, plain, rtol=0, atol=5e-5)
    back = frame.turned_back(frame.turned(v, "values"), "values")
    torch.testing.assert_close(back, v, rtol=0, atol=1e-6)


@frames
@pytest.mark.parametrize("tokens", [1, 64, 129, 300])
def test_attention_is_that_over_the_decoded_entries(monkeypatch: pytest.MonkeyPatch, name: str, tokens: int) -> None:
    """A-GEN-2, with some tokens kept exact."""
    full = full_cache(SHAPE, tokens)
    exact = [positions[positions < tokens] for positions in EXACT]
    caches = [QuantisedCache.of_prompt(full, SCHEMES[name], frame=FRAMES[name](), exact=exact)]
    monkeypatch.setattr("vcbench.engine.codes.quantised.make_store", TensorStore)
    caches += [QuantisedCache.of_prompt(full, SCHEMES[name], frame=FRAMES[name](), exact=exact)]
    rows = 5
    results = [attended(cache, 1, rows) for cache in caches]
    for cache in caches:
        cache.advance(rows)
    k, v, _ = caches[0].materialize(1)
    expected = attention(draw(rows, HEADS, SIZE, seed=30), k, v, tokens + 1)

    for result in results:
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(torch.stack(caches[1].materialize(1)[:2]), torch.stack([k, v]), rtol=0, atol=1e-5)


@frames
def test_rows_do_not_depend_on_the_width_of_a_block(name: str) -> None:
    cache = QuantisedCache.of_prompt(full_cache(SHAPE, 150), SCHEMES[name], frame=FRAMES[name](), exact=EXACT)
    rows = 7
    together = attended(cache, 0, rows)
    cache.roll_back()
    alone = []
    for row in range(rows):
        for layer in range(2):
            k, v = (draw(rows, KV_HEADS, SIZE, seed=20 + 2 * layer + i)[row : row + 1] for i in (0, 1))
            cache.write(layer, k, v)
        alone.append(cache.attend(0, draw(rows, HEADS, SIZE, seed=30)[row : row + 1]))
        cache.advance(1)

    assert torch.equal(torch.cat(alone), together)


@frames
def test_exact_tokens_are_exact_and_others_are_not(name: str) -> None:
    full = full_cache(SHAPE, 192)
    cache = QuantisedCache.of_prompt(full, SCHEMES[name], frame=FRAMES[name](), exact=EXACT)
    for layer, positions in enumerate(EXACT):
        for ours, real in zip(cache.materialize(layer)[:2], full.materialize(layer)[:2], strict=True):
            torch.testing.assert_close(ours[:, positions], real[:, positions], rtol=0, atol=1e-5)
            coded = torch.arange(64)[~torch.isin(torch.arange(64), positions)]
            assert (ours[:, coded] - real[:, coded]).abs().amax(-1).min() > 1e-3
    assert len(cache.exact) == 6
    assert cache.nbytes()["exact"] == 6 * (4 + 2 * KV_HEADS * SIZE * 4)


def test_the_fast_transform_is_the_matrix() -> None:
    """A-ROT-1."""
    x = draw(5, 128)

    torch.testing.assert_close(fast_hadamard(x).double(), x.double() @ hadamard(128), rtol=0, atol=1e-5)
    torch.testing.assert_close(fast_hadamard(fast_hadamard(x)), x, rtol=0, atol=1e-6)
    torch.testing.assert_close(hadamard(128) @ hadamard(128).mT, torch.eye(128).double(), rtol=0, atol=1e-12)


def test_heads_are_transformed_together() -> None:
    k = draw(4, 6, 16)
    pairs = torch.stack([torch.cat([k[0], k[1]], 1), torch.cat([k[2], k[3]], 1)]).double() @ hadamard(32)
    expected = torch.cat([pairs[0], pairs[1]], 1)

    torch.testing.assert_close(grouped_hadamard(k, 2).double(), expected, rtol=0, atol=1e-6)


def test_the_error_of_pre_rope_codes_is_the_error_after_the_embedding() -> None:
    """A-Q-4: turning by position keeps the norm of an error."""
    frame = FRAMES["grouped-4"]()
    x, error = draw(2, 40, 64), draw(2, 40, 64, seed=3)
    after = frame.stored(x + error, 0, 11) - frame.stored(x, 0, 11)

    torch.testing.assert_close(after.norm(dim=(0, 2)), error.norm(dim=(0, 2)), rtol=1e-5, atol=1e-5)
