"""TurboQuant: rotations, errors, biases and bytes, against the theory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.compressors import tiny
from vcbench.compressors.turboquant import TurboQuant, TurboQuantOptions
from vcbench.engine.codes.coders import DirectionCoder, ScaleRule
from vcbench.engine.codes.frames import Turned
from vcbench.engine.codes.lloyd_max import lloyd_max
from vcbench.engine.codes.rotation import hadamard, random_rotation
from vcbench.engine.codes.sketch import SketchingCoder

SIZE = 128
RULES: list[ScaleRule] = ["plain", "norm", "unbiased"]


def directions(count: int, size: int = SIZE, seed: int = 0) -> Tensor:
    drawn = torch.randn((count, size), generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm(dim=-1, keepdim=True)


def coder(bits: int, rule: ScaleRule = "plain", size: int = SIZE) -> DirectionCoder:
    return DirectionCoder(bits, bits, rule, size, torch.device("cpu"))


def decoded(x: Tensor, by: DirectionCoder, rotation: Tensor | None = None) -> Tensor:
    """x after coding, in its own space; turned by a Haar-random matrix unless told otherwise."""
    frame = Turned(random_rotation("qr", x.shape[-1], 0) if rotation is None else rotation)
    return frame.turned_back(by.decode(*by.encode(frame.turned(x, "keys"), "keys"), "keys"), "keys")


@pytest.mark.parametrize("kind", ["hadamard", "qr"])
def test_rotations_are_orthogonal(kind: str) -> None:
    """A-TQ-2."""
    rotation = random_rotation(kind, SIZE, 3)  # type: ignore[arg-type]

    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(SIZE), rtol=0, atol=1e-6)
    assert not torch.equal(rotation, random_rotation(kind, SIZE, 4))  # type: ignore[arg-type]
    x = directions(50)
    frame = Turned(rotation)
    torch.testing.assert_close(frame.turned_back(frame.turned(x, "keys"), "values"), x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_error_of_random_directions(bits: int, size: int) -> None:
    """A-TQ-3, within 2 % of the table; A-TQ-4: inner products with oneself shrink by the error."""
    x = directions(20_000, size)
    back = decoded(x, coder(bits, size=size))
    expected = lloyd_max(bits, size).mse

    assert (x - back).square().sum(-1).mean().item() == pytest.approx(expected, rel=0.02)
    assert (x * back).sum(-1).mean().item() == pytest.approx(1 - expected, rel=0.005)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_unbiased_scale_is_unbiased(bits: int) -> None:
    """A-TQ-6: the estimator of <x, y> has zero mean error, here for a cosine of 0.5."""
    x, other = directions(20_000), directions(20_000, seed=1)
    across = other - (other * x).sum(-1, keepdim=True) * x
    y = 0.5 * x + 0.75**0.5 * across / across.norm(dim=-1, keepdim=True)
    error = (decoded(x, coder(bits, "unbiased")) * y).sum(-1) - 0.5

    assert abs(error.mean().item()) < 4 * error.std().item() / 20_000**0.5 + 2e-4
    assert SIZE * error.square().mean().item() < {2: 0.12, 3: 0.03, 4: 0.008}[bits] * 1.2
    plain = (decoded(x, coder(bits)) * y).sum(-1) - 0.5
    assert plain.mean().item() == pytest.approx(-0.5 * lloyd_max(bits, SIZE).mse, rel=0.1)


def test_nearly_constant_vectors_need_the_signs() -> None:
    """A-TQ-7: a Hadamard transform alone turns them into one spike."""
    x = torch.full((1, SIZE), SIZE**-0.5) + 1e-3 * directions(1)
    x = x / x.norm()
    signed = [random_rotation("hadamard", SIZE, seed) for seed in range(60)]

    assert (decoded(x, coder(3), hadamard(SIZE).float()) - x).square().sum().item() > 0.5
    assert sum((decoded(x, coder(3), by) - x).square().sum().item() for by in signed) / 60 < 0.045


def test_the_scale_does_not_change_a_direction() -> None:
    """A-TQ-8."""
    x = directions(200)
    cosines = [torch.cosine_similarity(decoded(x, coder(3, rule)), x, dim=-1) for rule in RULES]

    torch.testing.assert_close(cosines[1], cosines[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(cosines[2], cosines[0], rtol=0, atol=1e-6)


def test_scales_are_half_precision_and_guarded() -> None:
    """A-TQ-9: 2^-11 relative, no overflow, zero stays zero."""
    x = 3.7 * directions(100)
    _, steps, _ = coder(4).encode(x, "keys")
    assert ((steps.float() - 3.7).abs() / 3.7).max().item() <= 2**-11
    for rule in RULES:
        large = decoded(1e6 * directions(3), coder(4, rule))
        assert bool(torch.isfinite(large).all())
        assert decoded(torch.zeros(2, SIZE), coder(4, rule)).eq(0).all()


@pytest.mark.parametrize("bits", ["k2v2", "k4v3", "k3v4", "k8v2"])
@pytest.mark.parametrize("rotation", ["hadamard", "qr"])
def test_entries_are_near_the_exact_ones_and_attention_is_over_them(bits: str, rotation: str) -> None:
    """A-GEN-2: the kernel over packed codes in the rotated space, against float64 over `materialize`."""
    o = TurboQuantOptions(bits=bits, rotation=rotation)  # type: ignore[arg-type]
    full = tiny.full_cache(torch.randn((2, 2, 200, 32), generator=torch.Generator().manual_seed(1)), heads=6)
    cache = TurboQuant(o).compress(tiny.prefill_of(full), seed=0)
    rows = [torch.randn((4, heads, 32), generator=torch.Generator().manual_seed(heads)) for heads in (6, 2, 2)]
    out = []
    for layer in range(2):
        cache.write(layer, rows[1], rows[2])
        out.append(cache.attend(layer, rows[0]))
    cache.advance(4)

    for layer in range(2):
        k, v, _ = cache.materialize(layer)
        shares = tiny.attention(rows[0], k, 201)
        expected = torch.einsum("hnj,hjd->nhd", shares, v.double().repeat_interleave(3, 0))
        torch.testing.assert_close(out[layer].double(), expected, rtol=0, atol=2e-5)
        exact = full.materialize(layer)
        for kind, count in zip((0, 1), o.key_and_value_bits, strict=True):
            error = ((k, v)[kind][:, :200] - exact[kind]).square().sum() / exact[kind].square().sum()
            theory = lloyd_max(count, 32).mse
            assert error.item() == pytest.approx(theory / (1 - theory), rel=0.15, abs=1e-6)


def sketched(bits: int, keys: Tensor, seed: int) -> Tensor:
    """Keys [n, D] as bits - 1 bits of code and a sketch stand for them, in the rotated space."""
    coding = SketchingCoder(bits - 1, bits - 1, "plain", SIZE, torch.device("cpu"), seed)
    coded = coding.decode(*coding.encode(keys, "keys"), "keys")
    return coded + coding.sketch.restored(*coding.sketch.of(keys - coded))


@pytest.mark.parametrize(("bits", "measured"), [(2, 1.571), (3, 0.567), (4, 0.182)])
def test_the_sketch_is_unbiased_but_varies(bits: int, measured: float) -> None:
    """A-TQ-5 over sketches, for a cosine of about a half; `measured` is the bound on the variance times D."""
    x, other = directions(1), directions(1, seed=9)
    y = 0.53 * x + 0.85 * torch.nn.functional.normalize(other - (other * x).sum() * x, dim=-1)
    errors = torch.stack([((sketched(bits, x, seed) - x) * y).sum() for seed in range(400)]).double()

    assert errors.mean().abs().item() < 3 * errors.std().item() / 400**0.5 + 2e-4
    assert 0.3 * measured < SIZE * errors.var().item() <= 1.1 * measured


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_better_scale_beats_a_sketch_of_the_same_bits(bits: int) -> None:
    """A-TQ-6: squared errors of inner products with a cosine of a half; plain ones are biased besides."""
    x, other = directions(4000), directions(4000, seed=1)
    across = other - (other * x).sum(-1, keepdim=True) * x
    y = 0.5 * x + 0.75**0.5 * torch.nn.functional.normalize(across, dim=-1)
    frame = Turned(random_rotation("qr", SIZE, 0))
    turned = frame.turned(y, "keys")

    def loss(estimate: Tensor) -> float:
        return ((estimate * turned).sum(-1) - 0.5).square().mean().item()

    keys = frame.turned(x, "keys")
    qjl = loss(sketched(bits, keys, 3))
    by_scale = {rule: loss(coder(bits, rule).decode(*coder(bits, rule).encode(keys, "keys"), "keys")) for rule in RULES}
    assert by_scale["unbiased"] < by_scale["plain"] < qjl
    assert qjl > 4 * by_scale["unbiased"]


def test_a_sketched_cache_attends_over_codes_and_sketch() -> None:
    o = TurboQuantOptions(bits="k3v4", scale="plain", qjl=True)
    full = tiny.full_cache(torch.randn((2, 2, 200, 32), generator=torch.Generator().manual_seed(1)), heads=6)
    cache = TurboQuant(o).compress(tiny.prefill_of(full), seed=0)
    rows = [torch.randn((4, heads, 32), generator=torch.Generator().manual_seed(heads)) for heads in (6, 2, 2)]
    out = []
    for layer in range(2):
        cache.write(layer, rows[1], rows[2])
        out.append(cache.attend(layer, rows[0]))
    cache.advance(4)
    bare = TurboQuant(replace(o, qjl=False, bits="k2v4")).compress(tiny.prefill_of(full), seed=0)

    for layer in range(2):
        k, v, _ = cache.materialize(layer)
        expected = torch.einsum("hnj,hjd->nhd", tiny.attention(rows[0], k, 201), v.double().repeat_interleave(3, 0))
        torch.testing.assert_close(out[layer].double(), expected, rtol=0, atol=2e-5)
        assert (k[:, :200] - bare.materialize(layer)[0]).abs().min() > 0
        assert torch.equal(v[:, :200], bare.materialize(layer)[1])
    held, without = cache.nbytes(), bare.nbytes()
    assert held["codes"] - without["codes"] == 2 * 2 * 256 * 32 // 8
    assert held["steps"] - without["steps"] == 2 * 2 * 256 * 2


def test_settings_that_a_sketch_does_not_take() -> None:
    with pytest.raises(ValueError, match="scale is unbiased, but qjl corrects the plain one"):
        TurboQuantOptions(qjl=True)
    with pytest.raises(ValueError, match="qjl leaves 7 of 8 bits"):
        TurboQuantOptions(qjl=True, scale="plain", bits="k8v4")


def test_bytes() -> None:
    """K b + 16 / D bits an element and the rotation; never a full-size copy."""
    full = tiny.full_cache(torch.randn(1, 2, 640, 64))
    held = TurboQuant(TurboQuantOptions(bits="k4v3")).compress(tiny.prefill_of(full), seed=0).nbytes()

    assert held["codes"] == 2 * 640 * 64 * 7 // 8
    assert held["steps"] == 2 * 640 * 2 * 2
    assert held["minima"] == 0
    assert held["tables"] == 4 * (16 + 8 + 2 * 64 * 64)
    estimate = TurboQuant.estimate_bytes(TurboQuantOptions(), replace(tiny.ARCHITECTURE, head_dim=64), 640, 4)
    assert estimate == 3 * (held["codes"] + held["steps"])


def test_a_head_size_that_hadamard_does_not_take_is_refused() -> None:
    assert "use qr" in (TurboQuant.unsupported(TurboQuantOptions(), tiny.ARCHITECTURE) or "")
    assert TurboQuant.unsupported(TurboQuantOptions(rotation="qr"), tiny.ARCHITECTURE) is None


@pytest.mark.parametrize("bits", ["k5v2", "4", "k4v3x", ""])
def test_bits_out_of_range(bits: str) -> None:
    with pytest.raises(ValueError, match=r"^bits is"):
        TurboQuantOptions(bits=bits)
