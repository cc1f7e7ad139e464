"""Every registered method on every shape of model: refused with a reason in the plan, or right."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.compressors import examples, shapes, tiny
from tests.compressors.examples import append, state
from tests.compressors.shapes import METHODS, SHAPES, Method
from tests.engine.cells import check_same, decode, request
from vcbench.engine.decoding.session import Prefilled
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import lookup, names

methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
every_shape = pytest.mark.parametrize("architecture", SHAPES.values(), ids=SHAPES)
SCHEMES = {
    label: (name, replace(options, sinks=0) if "sinks" in {each.name for each in fields(options)} else options)
    for label, (name, options) in METHODS.items()
    if lookup("compressor", name).kind == "quantise" and getattr(options, "codebook", None) != "nf"
}
"""Methods that code a token by itself or with its group; not `nf`, whose ranges are those of what is coded first."""
Rounds = list[tuple[int, int]]
rounds = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 13)).map(lambda r: (r[0], min(r[1], r[0] + 1))), max_size=8
)


def test_no_registered_method_is_left_out() -> None:
    """Each is tried on some shapes, and those of the other tests are all of them."""
    assert {name for name, _ in METHODS.values()} == set(names("compressor"))
    assert all(shapes.supported(method) for method in METHODS.values())
    assert {name for name, _ in examples.every_method().values()} == set(names("compressor"))


def compressed(method: Method, architecture: Architecture, tokens: int) -> tuple[FullCache, KVCache]:
    """The full cache of a prompt and the method's draft cache of it."""
    snapshot = shapes.snapshot(method, architecture, tokens)
    snapshot.cache.rewind(tokens)
    return snapshot.cache, shapes.make(method, architecture).compress(snapshot, seed=3)


@methods
@hypothesis_settings(max_examples=25)
@given(data=st.data(), pattern=rounds)
def test_drafts_leave_no_trace_on_any_shape_and_length(method: Method, data: st.DataObject, pattern: Rounds) -> None:
    """A-GEN-6: at every step a rolled back draft leaves the bytes of before, and only what is committed counts."""
    architecture = data.draw(st.sampled_from(shapes.supported(method)))
    tokens = data.draw(st.sampled_from(shapes.boundaries(method)))
    full, drafted = compressed(method, architecture, tokens)
    _, direct = compressed(method, architecture, tokens)
    for number, (length, committed) in enumerate(pattern):
        before = state(drafted)
        append(drafted, length, seed=number)
        drafted.roll_back()
        assert state(drafted) == before
        append(drafted, length, seed=50 + number)
        append(full, 14, seed=1000 + number)
        full.commit(committed)
        drafted.commit(committed, full)
        direct.commit(committed, full)
        assert drafted.tokens == drafted.committed == full.committed

    assert state(drafted) == state(direct)
    assert sum(drafted.nbytes().values()) == examples.held_bytes(drafted)


@pytest.mark.parametrize("method", SCHEMES.values(), ids=SCHEMES)
@hypothesis_settings(max_examples=15)
@given(data=st.data(), pattern=rounds)
def test_committed_tokens_are_coded_as_a_prompt_of_them_is(
    method: Method, data: st.DataObject, pattern: Rounds
) -> None:
    """Section 2.3: after every commit the cache is that of the full cache's committed tokens, bit for bit."""
    architecture = data.draw(st.sampled_from(shapes.supported(method)))
    tokens = data.draw(st.sampled_from(shapes.boundaries(method)))
    full, cache = compressed(method, architecture, tokens)
    for number, (length, committed) in enumerate(pattern):
        append(cache, length, seed=number)
        append(full, 14, seed=1000 + number)
        full.commit(committed)
        cache.commit(committed, full)
    whole = Prefill(
        cache=full,
        first_logits=torch.zeros(1),
        token_ids=tuple(tiny.token_ids(full.tokens)),
        decoder=shapes.decoder(architecture),
    )

    assert state(cache) == state(shapes.make(method, architecture).compress(whole, seed=3))


@methods
@every_shape
def test_attention_is_that_over_the_materialised_entries(method: Method, architecture: Architecture) -> None:
    """A-GEN-2 for every shape."""
    if shapes.unsupported(method, architecture) is not None:
        pytest.skip("refused in the plan")
    _, cache = compressed(method, architecture, 150)
    append(cache, 40, seed=5)
    cache.commit(40)
    examples.check_attention(cache, rtol=1e-5)


@methods
@every_shape
def test_a_model_is_refused_with_a_reason_or_decoded_right(method: Method, architecture: Architecture) -> None:
    """Case 7, A-GEN-3 and A-GEN-5: alone and in ragged batches, drafting and lossy; the first token is full KV's.

    The last is A-KIVI-2 for all: a prompt is prefilled in full precision.
    """
    reason = shapes.unsupported(method, architecture)
    if reason is not None:
        assert str(architecture.head_dim) in reason or str(architecture.n_kv_heads) in reason
        return
    decoder, compressor = shapes.decoder(architecture), shapes.make(method, architecture)
    items = []
    for tokens in (1, 40, 70):
        snapshot = shapes.snapshot(method, architecture, tokens)
        snapshot.cache.rewind(tokens)
        items.append(Prefilled(request(tiny.token_ids(tokens), str(tokens), 8), snapshot))
    full = [decode([item], decoder=decoder)[0] for item in items]
    for ours, expected in zip(decode(items, "vericache", compressor, 3, decoder=decoder), full, strict=True):
        check_same(ours, expected)
    for ours, item in zip(decode(items, "lossy", compressor, decoder=decoder), items, strict=True):
        (alone,) = decode([item], "lossy", compressor, decoder=decoder)
        assert ours.logits_sha256 == alone.logits_sha256
    first = [Prefilled(replace(item.request, max_tokens=1), item.prefill) for item in items]
    for ours, expected in zip(
        decode(first, "lossy", compressor, decoder=decoder), decode(first, decoder=decoder), strict=True
    ):
        check_same(ours, expected)
