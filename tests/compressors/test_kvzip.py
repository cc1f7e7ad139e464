"""KVzip against brute force: the reconstruction pass, its scores, and what is kept."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.compressors import tiny
from vcbench.compressors.kvzip import PART, WHOLE, KVzip, KVzipOptions, reconstruction_scores, repetition
from vcbench.engine.kv.cache import EntryCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.kv.stores import TensorStore
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.model.load import load_decoder
from vcbench.engine.model.observe import LayerRows
from vcbench.models.instruction import InstructionWriter
from vcbench.models.store import ModelFiles
from vcbench.models.tokenizer import Tokenizer
from vcbench.models.weights import WeightReader

TOKENS = 90


@pytest.fixture(scope="module")
def prefill() -> Prefill:
    return tiny.decoder().prefill(tiny.token_ids(TOKENS), chunk=TOKENS, instruct=instruct)


def instruct(text: str, quote: Sequence[int]) -> list[int]:
    """Seven tokens for the whole context, three and the quotation for a part."""
    return [11] * 7 if text == WHOLE else [12, 13, *quote, 14]


def options(**values: object) -> KVzipOptions:
    return KVzipOptions(**{"chunk": 40, "sinks": 4, **values})  # type: ignore[arg-type]


def rows_by_a_plain_prefill(decoder: Decoder, ids: Sequence[int], last: int) -> tuple[list[Tensor], list[Tensor]]:
    """Per layer: queries [last, H, D] of the last tokens and keys [Hk, T, D] of all."""
    queries: list[Tensor] = []

    def begin(rows: LayerRows) -> None:
        queries.append(rows.q[-last:].clone())

    cache = decoder.prefill(ids[:1], chunk=1).cache
    decoder.read_on(cache, ids[1:], begin)
    keys = decoder.prefill(ids, chunk=len(ids)).cache
    return queries, [keys.materialize(layer)[0] for layer in range(decoder.shape.n_layers)]


def queries_and_inputs(decoder: Decoder, cache: EntryCache, extra: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Per layer: queries [n, H, D] and normalised inputs [n, hidden] of tokens read after a cache."""
    shown: list[tuple[Tensor, Tensor]] = []
    decoder.read_on(cache, extra, lambda rows: shown.append((rows.q.clone(), rows.hidden.double())))
    return shown


@pytest.mark.parametrize("normalise", ["reduced", "full"])
def test_scores_are_the_highest_columns_of_the_reduced_softmax(prefill: Prefill, normalise: str) -> None:
    """A-KVZ-1, A-DROP-1: the pass itself is redone as one plain prefill of context, instruction and chunk."""
    decoder, o = tiny.decoder(), options(normalise=normalise)
    scores = reconstruction_scores(prefill, o)

    for start, stop in [(4, 44), (44, 84), (84, 90)]:
        extra = repetition(prefill, start, stop, first=start == 4)
        queries, keys = rows_by_a_plain_prefill(decoder, [*prefill.token_ids, *extra], len(extra))
        for layer, (q, k) in enumerate(zip(queries, keys, strict=True)):
            others = k[:, :4] if normalise == "reduced" else torch.cat([k[:, :start], k[:, stop:TOKENS]], dim=1)
            seen = torch.cat([others, k[:, start:stop], k[:, TOKENS:]], dim=1)
            shares = tiny.attention(q, seen, others.shape[1] + stop - start + 1)
            columns = shares[:, :, others.shape[1] : others.shape[1] + stop - start]
            expected = columns.unflatten(0, (2, 3)).amax((1, 2))
            torch.testing.assert_close(scores[layer, :, start:stop].double(), expected, rtol=1e-4, atol=1e-7)


def test_weighted_scores_are_those_of_kvzip_plus(prefill: Prefill) -> None:
    """A-KVZ-1 for KVzip+: |W_o^h v_i| / |h_t| times the share of row t and query head h, before the maximum."""
    decoder, extra = tiny.decoder(), repetition(prefill, 0, TOKENS, first=True)
    cache = decoder.prefill([*prefill.token_ids, *extra], chunk=TOKENS + len(extra)).cache
    shown = queries_and_inputs(decoder, prefill.cache, extra)

    scores = reconstruction_scores(prefill, options(sinks=0, chunk=TOKENS, weighted=True))

    for layer, (q, hidden) in enumerate(shown):
        k, v, _ = cache.materialize(layer)
        shares = tiny.attention(q, k, TOKENS + 1)[:, :, :TOKENS]
        weight = decoder.weights.layers[layer].output.weight().double().unflatten(1, (6, 20))
        wide = v[:, :TOKENS].double().repeat_interleave(3, 0)
        sizes = torch.einsum("ohd,hid->hio", weight, wide).norm(dim=2)
        expected = (shares * sizes[:, None] / hidden.norm(dim=1)[:, None]).unflatten(0, (2, 3)).amax((1, 2))
        torch.testing.assert_close(scores[layer].double(), expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(expected.argsort(), shares.unflatten(0, (2, 3)).amax((1, 2)).argsort())


def test_reading_the_chunk_alone_is_reading_a_prompt_of_sinks_and_chunk(prefill: Prefill) -> None:
    """`reads: chunk`: brute force over a context cut down to the sinks and the chunk, its keys where they were."""
    decoder, o = tiny.decoder(), options(reads="chunk")
    scores = reconstruction_scores(prefill, o)

    for start, stop in [(4, 44), (44, 84), (84, 90)]:
        extra = repetition(prefill, start, stop, first=start == 4)
        met = torch.tensor([*range(4), *range(start, stop)])
        cut = KeptCache.gather(prefill.cache, met.expand(3, 2, -1))
        queries = [q for q, _ in queries_and_inputs(decoder, cut, extra)]
        decoder.forward([Block(cut, extra)])
        for layer, q in enumerate(queries):
            shares = tiny.attention(q, cut.materialize(layer)[0], len(met) + 1)[:, :, 4 : len(met)]
            expected = shares.unflatten(0, (2, 3)).amax((1, 2))
            torch.testing.assert_close(scores[layer, :, start:stop].double(), expected, rtol=1e-4, atol=1e-7)


def test_what_is_read_does_not_matter_within_one_chunk(prefill: Prefill) -> None:
    o = options(chunk=TOKENS)

    by_chunk = reconstruction_scores(prefill, replace(o, reads="chunk"))

    torch.testing.assert_close(by_chunk, reconstruction_scores(prefill, o), rtol=1e-4, atol=1e-7)
    assert not torch.allclose(
        reconstruction_scores(prefill, options(reads="chunk"))[1:, :, 44:],
        reconstruction_scores(prefill, options())[1:, :, 44:],
        rtol=1e-3,
    )


@pytest.mark.parametrize("reads", ["context", "chunk"])
def test_torch_scores_as_the_kernel_does(prefill: Prefill, reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs where there are no pages, tried with plain tensors on CPU."""
    o = options(reads=reads, weighted=True)
    paged = reconstruction_scores(prefill, o)
    monkeypatch.setattr("vcbench.engine.kv.cache.make_store", TensorStore)
    plain = tiny.decoder().prefill(prefill.token_ids, chunk=TOKENS, instruct=instruct)

    assert isinstance(plain.cache.store, TensorStore)
    torch.testing.assert_close(reconstruction_scores(plain, o), paged, rtol=1e-4, atol=1e-7)


def test_single_chunk_without_sinks(prefill: Prefill) -> None:
    """A-KVZ-1 to the letter: one chunk, no sinks, 1e-5."""
    extra = repetition(prefill, 0, TOKENS, first=True)
    queries, keys = rows_by_a_plain_prefill(tiny.decoder(), [*prefill.token_ids, *extra], len(extra))
    scores = reconstruction_scores(prefill, options(sinks=0, chunk=TOKENS))

    for layer, (q, k) in enumerate(zip(queries, keys, strict=True)):
        expected = tiny.attention(q, k, TOKENS + 1)[:, :, :TOKENS].unflatten(0, (2, 3)).amax((1, 2))
        torch.testing.assert_close(scores[layer].double(), expected, rtol=1e-5, atol=1e-7)


def test_a_chunk_longer_than_the_context_is_one_chunk(prefill: Prefill) -> None:
    """A-KVZ-2."""
    whole = reconstruction_scores(prefill, options(chunk=TOKENS - 4))

    assert torch.equal(reconstruction_scores(prefill, options(chunk=TOKENS)), whole)
    assert torch.equal(reconstruction_scores(prefill, options(chunk=10 * TOKENS)), whole)


def test_equal_logits_give_the_closed_form() -> None:
    """A-DROP-2: with zero queries the first row of a pass sees fewest keys, so that a key scores 1 / (s + m + 1)."""
    prefill = tiny.decoder(zero_queries=True).prefill(tiny.token_ids(14), chunk=14)

    scores = reconstruction_scores(prefill, options(chunk=10))

    torch.testing.assert_close(scores[:, :, 4:], torch.full((3, 2, 10), 1 / 15), rtol=1e-5, atol=0)
    assert bool(torch.isinf(scores[:, :, :4]).all())


def test_equal_counts_exact_budget_and_sinks(prefill: Prefill) -> None:
    """A-DROP-5 and -3: every head keeps the same number, exactly the budget, the sinks among them."""
    for keep in (0.05, 0.2, 0.31, 0.9):
        positions = tiny.positions_of(KVzip(options(keep=keep)).compress(prefill, seed=0))
        assert positions.shape == (3, 2, max(5, round(keep * TOKENS)))
        assert positions[:, :, :4].tolist() == [[[0, 1, 2, 3]] * 2] * 3
        assert bool((positions.diff(dim=2) > 0).all())


def test_keep_all_keeps_everything_without_a_pass() -> None:
    everything = tiny.prefill_of(tiny.full_cache(torch.randn(2, 2, 30, 20)))

    cache = KVzip(options(keep=1.0)).compress(everything, seed=0)

    assert tiny.positions_of(cache).tolist() == [[list(range(30))] * 2] * 2


def test_the_snapshot_is_left_as_it_was(prefill: Prefill) -> None:
    """A-DROP-6: the position counter stays the true length, and nothing of the pass stays behind."""
    before = [prefill.cache.materialize(layer)[0] for layer in range(3)]
    held = prefill.cache.nbytes()

    for reads in ("chunk", "context"):
        cache = KVzip(options(reads=reads)).compress(prefill, seed=0)

    assert (cache.tokens, cache.committed) == (TOKENS, TOKENS)
    assert (prefill.cache.tokens, prefill.cache.committed) == (TOKENS, TOKENS)
    assert prefill.cache.nbytes() == held
    assert all(torch.equal(prefill.cache.materialize(layer)[0], k) for layer, k in enumerate(before))


def test_a_prompt_does_not_depend_on_others(prefill: Prefill) -> None:
    """Batch independence: another prompt compressed in between changes nothing."""
    method = KVzip(options())
    first = tiny.positions_of(method.compress(prefill, seed=0))
    method.compress(tiny.decoder().prefill(tiny.token_ids(33, seed=3), chunk=33, instruct=instruct), seed=0)

    assert torch.equal(tiny.positions_of(method.compress(prefill, seed=1)), first)


def test_later_chunks_quote_the_tokens_before_them(prefill: Prefill) -> None:
    ids = list(prefill.token_ids)

    assert repetition(prefill, 4, 44, first=True) == instruct(WHOLE, []) + ids[4:44]
    assert repetition(prefill, 44, 84, first=False) == [12, 13, *ids[36:44], 14, *ids[44:84]]
    assert instruct(PART, []) == [12, 13, 14]


def test_without_a_tokenizer_the_tokens_alone_are_read() -> None:
    prefill = tiny.decoder().prefill(tiny.token_ids(20), chunk=20)

    assert repetition(prefill, 4, 20, first=True) == list(prefill.token_ids[4:])
    assert KVzip(options(keep=0.5)).compress(prefill, seed=0).tokens == 20


def test_a_prefill_made_by_hand_is_refused() -> None:
    by_hand = tiny.prefill_of(tiny.full_cache(torch.randn(2, 2, 30, 20)))

    with pytest.raises(ValueError, match=r"let Decoder\.prefill make"):
        KVzip(options()).compress(by_hand, seed=0)


@pytest.mark.parametrize(
    ("values", "word"), [({"keep": 0.0}, "keep"), ({"keep": 1.1}, "keep"), ({"factor": 1.0}, "factor"),
                         ({"chunk": 0}, "chunk"), ({"sinks": -1}, "sinks"),
                         ({"reads": "chunk", "normalise": "full"}, "reads")],
)  # fmt: skip
def test_options_out_of_range(values: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=f"^{word} is"):
        options(**values)


def test_factor_takes_the_place_of_keep(prefill: Prefill) -> None:
    assert tiny.positions_of(KVzip(options(factor=4.0)).compress(prefill, seed=0)).shape[2] == round(TOKENS / 4)


def test_global_eviction_keeps_the_best_pairs_of_all_heads(prefill: Prefill) -> None:
    """Exactly round(N c) entries, by one threshold over layers and heads."""
    o = options(keep=0.2, eviction="pair")
    scores = reconstruction_scores(prefill, o)

    cache = KVzip(o).compress(prefill, seed=0)

    kept = [set(head.tolist()) - {-1} for layer in range(3) for head in cache.materialize(layer)[2]]
    count = round(0.2 * scores.numel())
    lowest = scores.flatten().sort(descending=True).values[count - 1]
    assert sum(map(len, kept)) == count
    assert kept == [set((head >= lowest).nonzero().flatten().tolist()) for layer in scores for head in layer]
    assert len({len(head) for head in kept}) > 1


def test_global_eviction_of_equal_scores_keeps_exactly_the_budget() -> None:
    """A-DROP-3, where the published code keeps nothing."""
    prefill = tiny.decoder(zero_queries=True).prefill(tiny.token_ids(40), chunk=40)

    cache = KVzip(options(keep=0.25, eviction="pair")).compress(prefill, seed=0)

    kept = [head for layer in range(3) for head in cache.materialize(layer)[2]]
    assert sum(int((head >= 0).sum()) for head in kept) == round(0.25 * 3 * 2 * 40)
    assert all(head[:4].tolist() == [0, 1, 2, 3] for head in kept)


@pytest.mark.model
def test_a_planted_sentence_ranks_high_on_the_embedded_model(embedded_model: ModelFiles) -> None:
    """A-KVZ-3, as far as a model of this size bears it out: its telling tokens are in the top fifth, "the" is not.

    Scores are averaged over layers and heads. Measured: 8 of 17 tokens, where chance puts 3.
    """
    tokenizer = Tokenizer.from_files(embedded_model)
    with WeightReader(embedded_model.path) as reader:
        decoder, _ = load_decoder(
            embedded_model.architecture,
            reader,
            device=torch.device("cpu"),
            dtype=torch.float32,
            exactness="fast",
        )
    code = tokenizer.encode(inspect.getsource(textwrap))[:600]
    needle = tokenizer.encode(" The secret code of the blue safe is 7391-KTX.")
    ids = [*code[:200], *needle, *code[200:]]
    prefill = decoder.prefill(ids, chunk=len(ids), instruct=InstructionWriter(tokenizer))

    scores = reconstruction_scores(prefill, KVzipOptions()).nan_to_num(posinf=0.0).mean((0, 1))
    share = scores.argsort(descending=True).argsort()[200 : 200 + len(needle)] / len(ids)

    assert (share < 0.2).float().mean().item() >= 0.4
