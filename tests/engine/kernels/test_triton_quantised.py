"""The Triton kernel in its interpreter against attention over what the codes stand for, and against the CPU kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is installed on Linux alone")

from tests.engine.attention import attention, draw, shape_of
from tests.engine.test_quantised import full_cache, per_channel, per_token
from vcbench.engine.coders import Coder, DirectionCoder, FP8Coder
from vcbench.engine.kernels.triton_quantised import SPLIT
from vcbench.engine.quantised import QuantisedCache
from vcbench.engine.scheme import Scheme
from vcbench.engine.stores import TensorStore

pytestmark = pytest.mark.triton
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
"""The interpreter cannot multiply bfloat16."""
ALL, SHARED = 4, 2


@dataclass(frozen=True)
class Form:
    """A kind of code with the head size that it is tried at."""

    head_dim: int
    scheme: Scheme
    coder: Coder | None = None


def directions(size: int, key_bits: int, value_bits: int) -> Form:
    """TurboQuant's codes, its rotation aside."""
    coder = DirectionCoder(key_bits, value_bits, "unbiased", size, DEVICE)
    return Form(size, Scheme.per_token(size, key_bits=key_bits, value_bits=value_bits, symmetric=True), coder)


FORMS = [
    Form(64, per_channel(2, 32, 64)),
    Form(64, per_channel(4, 32, 128)),
    Form(96, per_channel(3, 32, 32)),
    Form(128, per_channel(4, 128, 128, value_group=32)),
    Form(20, per_token(8, 20)),
    Form(64, per_token(4, 64, symmetric=False)),
    Form(80, per_token(3, 80, symmetric=False, value_group=16, residual=70)),
    Form(64, Scheme.per_token(64, key_bits=8, value_bits=8, symmetric=True), FP8Coder(0.05, DEVICE)),
    directions(64, 4, 3),
    directions(32, 3, 2),
]


def cache_of(form: Form, tokens: int, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> QuantisedCache:
    """A draft cache on `DEVICE` whose attention is the Triton kernel's; the prompt's entries are always the same."""
    shape = shape_of(heads=ALL, kv_heads=SHARED, head_dim=form.head_dim, dtype=dtype)
    monkeypatch.setattr("vcbench.engine.quantised.make_store", TensorStore)
    monkeypatch.setattr("vcbench.engine.cache.make_store", TensorStore)
    monkeypatch.setattr("vcbench.engine.quantised.on_gpu", lambda device: True)
    return QuantisedCache.of_prompt(full_cache(replace(shape, device=DEVICE), tokens), form.scheme, form.coder)


def attended(cache: QuantisedCache, rows: int) -> torch.Tensor:
    """Attention of `rows` new tokens of layer 1, which then count."""
    size = cache.shape.head_dim
    for layer in range(2):
        k, v = (draw(rows, SHARED, size, seed=20 + 2 * layer + i).to(DEVICE, cache.shape.dtype) for i in (0, 1))
        cache.write(layer, k, v)
    out = cache.attend(1, draw(rows, ALL, size, seed=30).to(DEVICE, cache.shape.dtype))
    cache.advance(rows)
    return out.cpu()


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (129, 5), (300, 1)])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_attention_is_that_over_the_decoded_entries(
    monkeypatch: pytest.MonkeyPatch, form: Form, tokens: int, rows: int
) -> None:
    cache = cache_of(form, tokens, monkeypatch, torch.float32)
    ours = attended(cache, rows)
    k, v, _ = cache.materialize(1)
    expected = attention(draw(rows, ALL, form.head_dim, seed=30), k.cpu(), v.cpu(), tokens + 1)

    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", [form for form in FORMS if form.coder is None], ids=str)
def test_it_says_what_the_cpu_kernel_says(monkeypatch: pytest.MonkeyPatch, form: Form) -> None:
    tokens, rows = 200, 3
    on_cpu = QuantisedCache.of_prompt(
        full_cache(shape_of(heads=ALL, kv_heads=SHARED, head_dim=form.head_dim), tokens), form.scheme
    )
    size = form.head_dim
    for layer in range(2):
        on_cpu.write(layer, *(draw(rows, SHARED, size, seed=20 + 2 * layer + i) for i in (0, 1)))
    expected = on_cpu.attend(1, draw(rows, ALL, size, seed=30))

    torch.testing.assert_close(
        attended(cache_of(form, tokens, monkeypatch, torch.float32), rows), expected, rtol=0, atol=1e-5
    )


def test_several_splits_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    form, tokens = FORMS[0], 64 * SPLIT + 100
    cache = cache_of(form, tokens, monkeypatch, torch.float32)
    ours = attended(cache, 1)
    k, v, _ = cache.materialize(1)
    expected = attention(draw(1, ALL, form.head_dim, seed=30), k.cpu(), v.cpu(), tokens + 1)

    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


def test_more_rows_than_a_tile_and_more_heads_than_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 tokens of 2 query heads a KV head are 40 rows, three tiles."""
    form, rows = FORMS[1], 20
    cache = cache_of(form, 130, monkeypatch, torch.float32)
    ours = attended(cache, rows)
    k, v, _ = cache.materialize(1)

    expected = attention(draw(rows, ALL, form.head_dim, seed=30), k.cpu(), v.cpu(), 131)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


def test_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_of(FORMS[1], 200, monkeypatch, HALF)
    ours = attended(cache, 1)
    k, v, _ = cache.materialize(1)
    expected = attention(draw(1, ALL, 64, seed=30).to(HALF), k.cpu(), v.cpu(), 201)

    assert ours.dtype == HALF
    torch.testing.assert_close(ours.double(), expected, rtol=0.02, atol=0.02)


def test_a_coded_cache_on_a_gpu_uses_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(
        "vcbench.engine.kernels.triton_quantised.attend_codes", lambda q, *rest: called.append(rest) or q
    )
    attended(cache_of(FORMS[0], 100, monkeypatch, torch.float32), 1)

    assert len(called) == 1
