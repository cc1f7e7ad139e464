"""The embedded model: our logits against transformers, and VeriCache bit for bit on real text."""

from __future__ import annotations

import argparse
import inspect
import pydoc_data.topics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from vcbench.compressors.base import Compressor
from vcbench.compressors.kivi import KIVI, KIVIOptions
from vcbench.compressors.none import NoCompression, NoneOptions
from vcbench.compressors.snapkv import SnapKV, SnapKVOptions
from vcbench.config.schema import Arm
from vcbench.engine import environment
from vcbench.engine.decoding.session import CellSetup, Prefilled, run_cell
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Block, Decoder
from vcbench.engine.model.load import load_decoder
from vcbench.engine.types import Generation, Request
from vcbench.models.store import ModelFiles
from vcbench.models.tokenizer import Tokenizer
from vcbench.models.weights import WeightReader

pytestmark = pytest.mark.model
PROMPT, DECODED = 600, 32
DRAFT_LENGTH = 25


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Here the work is worth all cores."""
    environment.set_threads(0)
    yield
    environment.set_threads(1)


@pytest.fixture(scope="module")
def decoder(embedded_model: ModelFiles) -> Decoder:
    with WeightReader(embedded_model.path) as reader:
        made, _ = load_decoder(
            embedded_model.architecture, reader, device=torch.device("cpu"), dtype=torch.float32, exactness="bitwise"
        )
    return made


@pytest.fixture(scope="module")
def reference(embedded_model: ModelFiles) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(embedded_model.path, attn_implementation="eager", dtype=torch.float32)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def texts(embedded_model: ModelFiles) -> dict[str, list[int]]:
    """Prose and code that every Python brings along."""
    topics = pydoc_data.topics.topics
    tokenizer = Tokenizer.from_files(embedded_model)
    return {
        "prose": tokenizer.encode("\n\n".join(topics[key] for key in sorted(topics)[:12]))[:2000],
        "code": tokenizer.encode(inspect.getsource(argparse.HelpFormatter))[:2000],
    }


@pytest.mark.parametrize("name", ["prose", "code"])
def test_logits_equal_those_of_transformers(
    decoder: Decoder, reference: PreTrainedModel, texts: dict[str, list[int]], name: str
) -> None:
    """Measured up to 6e-5 at 200 to 2,000 tokens, where logits reach 40; ours are the nearer ones to float64."""
    ids = texts[name][: PROMPT + DECODED]
    expected: Tensor = reference(torch.tensor([ids]), logits_to_keep=DECODED + 1).logits[0]
    prefill = decoder.prefill(ids[:PROMPT], chunk=256)
    rows = [prefill.first_logits[None]]
    for token in ids[PROMPT:]:
        rows.append(decoder.forward([Block(prefill.cache, [token])]))
        prefill.cache.commit(1)

    torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=1e-4)


def generate(decoder: Decoder, item: Prefilled, arm: Arm, compressor: Compressor | None = None) -> Generation:
    ended: list[Generation] = []
    setup = CellSetup(arm=arm, compressor=compressor, draft_length=DRAFT_LENGTH)
    run_cell(decoder, setup, [item], on_end=ended.append)
    return ended[0]


@pytest.fixture(scope="module")
def prompt(decoder: Decoder, texts: dict[str, list[int]]) -> Prefilled:
    ids = tuple(texts["code"][:PROMPT])
    request = Request(id="code", prompt_ids=ids, max_tokens=48)
    return Prefilled(request, decoder.prefill(ids, chunk=2048, query_window=32))


@pytest.fixture(scope="module")
def full(decoder: Decoder, prompt: Prefilled) -> Generation:
    return generate(decoder, prompt, "full")


@pytest.mark.parametrize(
    ("compressor", "share"),
    [
        (NoCompression(NoneOptions()), 1.0),
        (SnapKV(SnapKVOptions(factor=2.0)), 0.25),
        (KIVI(KIVIOptions(bits=4)), 0.4),
    ],
    ids=["none", "snapkv", "kivi"],
)
def test_vericache_gives_the_output_of_full_kv(
    decoder: Decoder, prompt: Prefilled, full: Generation, compressor: Compressor, share: float
) -> None:
    """Bit for bit, and drafts are good enough to be worth it."""
    ours = generate(decoder, prompt, "vericache", compressor)

    assert ours.token_ids == full.token_ids
    assert ours.logits_sha256 == full.logits_sha256
    assert accepted_share(ours) >= share


def accepted_share(done: Generation) -> float:
    return sum(each.accepted for each in done.rounds) / sum(each.drafted for each in done.rounds)


def test_a_position_taken_from_the_kept_length_makes_acceptance_collapse(
    decoder: Decoder, prompt: Prefilled, full: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 9 on a model that has learnt to use positions; verification keeps the output right."""
    short = Prefilled(replace(prompt.request, max_tokens=12), prompt.prefill)
    right = generate(decoder, short, "vericache", SnapKV(SnapKVOptions(factor=2.0)))
    embed = Decoder._embed

    def from_kept_length(self: Decoder, blocks: Sequence[Block]) -> tuple[Tensor, Tensor]:
        x, positions = embed(self, blocks)
        caches = [block.cache for block in blocks for _ in block.token_ids]
        lost = [cache.prompt - cache.kept if isinstance(cache, KeptCache) else 0 for cache in caches]
        return x, positions - torch.tensor(lost)

    monkeypatch.setattr(Decoder, "_embed", from_kept_length)
    wrong = generate(decoder, short, "vericache", SnapKV(SnapKVOptions(factor=2.0)))

    assert wrong.token_ids == full.token_ids[:12]
    assert wrong.logits_sha256 == right.logits_sha256
    assert accepted_share(wrong) < 0.5 * accepted_share(right)
