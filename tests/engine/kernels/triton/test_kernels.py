"""The Triton kernels, in their interpreter where there is no GPU, against attention over what caches stand for.

Also against the CPU's kernels, and each request of a ragged batch against itself alone.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is installed on Linux alone")

from tests.engine.kernels.triton.gpu_caches import DEVICE, KINDS, as_on_gpu, prompt, queries, shape, write
from tests.engine.reference import attention
from vcbench.engine.attention.forward import BatchAttention
from vcbench.engine.attention.gpu_codebook import codebook_spans
from vcbench.engine.attention.gpu_codes import rotated_spans
from vcbench.engine.attention.readers import attend
from vcbench.engine.codes.codebook_cache import CodebookCache
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.kernels.triton import codebook as triton_codebook
from vcbench.engine.kernels.triton import rotatekv as triton_rotated
from vcbench.engine.kernels.triton.parts import LEAST_SPLIT, MOST_SPLITS, split_tokens
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.rope import BlockRope, RopeTable
from vcbench.models.architecture import Rope

pytestmark = pytest.mark.triton
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
"""The interpreter cannot multiply bfloat16."""
SEVERAL_SPLITS = LEAST_SPLIT + 44


def made(kind: str, tokens: int, dtype: torch.dtype = torch.float32) -> KVCache:
    """A cache of a prompt."""
    kv_heads, head_dim, make = KINDS[kind]
    return make(prompt(shape(kv_heads, head_dim, dtype), tokens))


def attended(cache: KVCache, rows: int) -> torch.Tensor:
    """Attention of new tokens of layer 1, which then count."""
    joined = BatchAttention([(cache, rows)])
    assert joined._joined is not None
    write(cache, rows)
    out = joined._joined.attend(1, queries(cache.shape, rows))
    cache.advance(rows)
    return out


def decoded(cache: KVCache, rows: int) -> torch.Tensor:
    """Attention of the last `rows` tokens over `materialize`, in float64; heads may hold differently many."""
    k, v, positions = (x.cpu() for x in cache.materialize(1))
    q, group = queries(cache.shape, rows).cpu(), cache.shape.n_heads // cache.shape.n_kv_heads
    heads = []
    for head in range(cache.shape.n_kv_heads):
        held = positions[head] >= 0
        visible = int(held.sum()) - rows + 1
        part = slice(head * group, (head + 1) * group)
        heads.append(attention(q[:, part], k[head : head + 1, held], v[head : head + 1, held], visible))
    return torch.cat(heads, dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_that_over_the_decoded_entries(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    as_on_gpu(monkeypatch)
    cache = made(kind, SEVERAL_SPLITS)
    ours = attended(cache, 3)

    torch.testing.assert_close(ours.cpu().double(), decoded(cache, 3), rtol=0, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 64, 129])
@pytest.mark.parametrize("kind", ["kivi-4", "3-bits", "rotatekv-alone", "kvquant", "exact-tokens"])
def test_short_prompts(monkeypatch: pytest.MonkeyPatch, kind: str, tokens: int) -> None:
    as_on_gpu(monkeypatch)
    cache = made(kind, tokens)
    ours = attended(cache, 1)

    torch.testing.assert_close(ours.cpu().double(), decoded(cache, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["kivi-4", "3-bits", "turboquant", "qjl", "rotatekv", "kvquant", "ragged"])
def test_they_say_what_the_cpu_kernels_say(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if DEVICE.type != "cpu":
        pytest.skip("the other cache would be on the GPU, too")
    on_cpu = made(kind, 200)
    write(on_cpu, 1)
    expected = attend(on_cpu, 1, queries(on_cpu.shape, 1))
    as_on_gpu(monkeypatch)

    torch.testing.assert_close(attended(made(kind, 200), 1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["kivi-2", "exact-tokens", "rotatekv-alone", "kvquant", "kept", "ragged"])
def test_a_ragged_batch_is_one_launch_and_each_request_what_it_is_alone(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The third request has two splits and the second more than one tile of rows."""
    as_on_gpu(monkeypatch)
    requests = [(made(kind, tokens), rows) for tokens, rows in ((70, 1), (131, 9), (SEVERAL_SPLITS, 2))]
    alone = torch.cat([attended(cache, rows) for cache, rows in requests])
    for cache, _ in requests:
        cache.roll_back()
    joined = BatchAttention(requests)._joined
    assert joined is not None
    s = requests[0][0].shape
    for cache, rows in requests:
        write(cache, rows)
    q = torch.cat([queries(s, rows) for _, rows in requests])

    assert torch.equal(joined.attend(1, q), alone)


@pytest.mark.parametrize("kind", ["kivi-4", "kvquant", "kept", "ragged"])
def test_a_row_does_not_depend_on_the_width_of_its_block(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Bit for bit, where there are two splits of the committed tokens: wider blocks end in another tile of rows."""
    as_on_gpu(monkeypatch)
    cache = made(kind, SEVERAL_SPLITS)
    widest = attended(cache, 9)
    changed = []
    for rows in (1, 2, 5, 8):
        cache.roll_back()
        if not torch.equal(attended(cache, rows), widest[:rows]):
            changed.append(rows)

    assert not changed


@pytest.mark.parametrize("kind", ["int4", "kept", "ragged"])
def test_new_tokens_are_written_as_each_cache_writes_them(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    as_on_gpu(monkeypatch)
    requests, expected = [(made(kind, 70), 2), (made(kind, 40), 1)], []
    for cache, rows in requests:
        write(cache, rows)
        cache.advance(rows)
        expected.append(cache.materialize(1))
        cache.roll_back()
        write(cache, rows, seed=50)
    joined = BatchAttention(requests)._joined
    assert joined is not None
    s = requests[0][0].shape
    for layer in range(2):
        k, v = (
            torch.cat([draw_rows(s.n_kv_heads, s.head_dim, rows, 20 + 2 * layer + i) for _, rows in requests])
            for i in (0, 1)
        )
        joined.write(layer, k, v)
    for (cache, rows), entries in zip(requests, expected, strict=True):
        cache.advance(rows)
        assert all(torch.equal(a, b) for a, b in zip(cache.materialize(1), entries, strict=True))


def draw_rows(heads: int, size: int, rows: int, seed: int) -> torch.Tensor:
    """What `gpu_caches.write` writes."""
    return torch.randn((rows, heads, size), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("kind", ["kivi-4", "qjl", "rotatekv", "kvquant", "kept"])
def test_half_precision(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    as_on_gpu(monkeypatch)
    cache = made(kind, 200, HALF)
    ours = attended(cache, 1)

    assert ours.dtype == HALF
    torch.testing.assert_close(ours.cpu().double(), decoded(cache, 1), rtol=0.02, atol=0.02)


def test_the_full_cache_and_any_that_holds_all_tokens_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of the control `none` must be full KV's own, so no other kernel may read it."""
    as_on_gpu(monkeypatch)
    full = prompt(shape(2, 32), 50)
    everything = KeptCache.gather(full, torch.arange(50, device=DEVICE).expand(2, 2, -1))

    assert BatchAttention([(full, 1)])._joined is None
    assert BatchAttention([(everything, 1)])._joined is None


def test_caches_that_differ_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_gpu(monkeypatch)

    assert BatchAttention([(made("kivi-2", 70), 1), (made("kivi-4", 70), 1)])._joined is None
    assert BatchAttention([(made("kvquant-dense", 70), 1), (made("fp8", 70), 1)])._joined is None
    assert BatchAttention([(made("kept", 70), 1), (FullCache(shape(2, 64)), 1)])._joined is None


@pytest.mark.parametrize(("committed", "length"), [(0, 1), (LEAST_SPLIT * MOST_SPLITS, 1), (131072, 8)])
def test_splits_become_longer_where_there_would_be_too_many(committed: int, length: int) -> None:
    assert split_tokens(committed) == LEAST_SPLIT * length


@pytest.mark.parametrize("kind", ["rotatekv", "kvquant"])
def test_requests_that_share_rotary_tables_point_into_the_same_ones(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A long request behind a short one makes the tables grow, which moves them."""
    as_on_gpu(monkeypatch)
    shared = RopeTable(Rope(theta=1000.0), KINDS[kind][1], DEVICE)
    monkeypatch.setattr("tests.engine.kernels.triton.gpu_caches.rope", lambda full: shared)
    caches = [made(kind, tokens) for tokens in (64, 1100)]
    shared.blocks = BlockRope(shared)
    shared.blocks.by_position(64)
    if kind == "rotatekv":
        spans = rotated_spans([(cache, 1) for cache in caches if isinstance(cache, QuantisedCache)])
        fields = triton_rotated.COS.value, triton_rotated.SIN.value
    else:
        spans = codebook_spans([(cache, 1) for cache in caches if isinstance(cache, CodebookCache)])
        fields = triton_codebook.COS.value, triton_codebook.SIN.value

    assert spans.shape[1] == 2
    for field, table in zip(fields, shared.blocks.by_position(1100), strict=True):
        assert (spans[:, :, field] == table.data_ptr()).all()
