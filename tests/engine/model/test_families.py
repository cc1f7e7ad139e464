"""Every family against transformers, and every row against itself in other company."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.engine.model import families
from tests.engine.model.families import CASES, Case
from vcbench.engine import environment
from vcbench.engine.kv.tensors import TensorStore
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.model.row_operations import TorchRows

PROMPT, DECODED = 290, 26
WIDTHS = (1, 2, 3, 5, 8, 16, 25)
IN_HALF = {
    "llama": torch.bfloat16,
    "llama-head20-bias-tied": torch.float16,
    "mistral-mha-yarn": torch.bfloat16,
    "qwen2-tied": torch.float16,
    "qwen3-head64-bias-yarn": torch.bfloat16,
    "qwen3-moe-normalised": torch.bfloat16,
}


@dataclass(frozen=True)
class Tiny:
    """A case on disk, its tokens, and what transformers says about the last ones: the prefill's and each decoded."""

    case: Case
    directory: Path
    ids: list[int]
    expected: Tensor

    @property
    def decoded(self) -> list[int]:
        return self.ids[PROMPT:]

    def prefill(self, decoder: Decoder, chunk: int = 64) -> Prefill:
        return decoder.prefill(self.ids[:PROMPT], chunk=chunk)


def make_tiny(case: Case, directory: Path) -> Tiny:
    model = families.save_model(case, directory)
    ids = families.token_ids(PROMPT + DECODED)
    return Tiny(case, directory, ids, families.reference_logits(model, ids)[PROMPT - 1 :])


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def decoder(tiny: Tiny) -> Decoder:
    return families.load(tiny.directory)


@pytest.fixture(scope="module", params=IN_HALF)
def half(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tiny, Decoder]:
    """The torch back-end; load_decoder raises if the probe finds no plan for this CPU."""
    tiny = make_tiny(next(case for case in CASES if case.name == request.param), tmp_path_factory.mktemp("model"))
    decoder = families.load(tiny.directory, dtype=IN_HALF[request.param])
    assert isinstance(decoder.rows, TorchRows)
    return tiny, decoder


def in_blocks(decoder: Decoder, prefill: Prefill, ids: Sequence[int], width: int) -> Tensor:
    """Logits after each of `ids`, decoded `width` at a time; the prefill is left as it was."""
    before, rows = prefill.cache.tokens, []
    for start in range(0, len(ids), width):
        block = ids[start : start + width]
        rows.append(decoder.forward([Block(prefill.cache, block)]))
        prefill.cache.commit(len(block))
    prefill.cache.rewind(before)
    return torch.cat(rows)


@pytest.mark.parametrize("chunk", [7, 64, PROMPT])
def test_logits_equal_those_of_transformers(tiny: Tiny, decoder: Decoder, chunk: int) -> None:
    prefill = tiny.prefill(decoder, chunk)
    ours = torch.cat([prefill.first_logits[None], in_blocks(decoder, prefill, tiny.decoded, 1)])

    torch.testing.assert_close(ours, tiny.expected, rtol=0, atol=1e-4)


def test_the_torch_back_end_in_wide_floats_equals_transformers(tiny: Tiny) -> None:
    decoder = families.load(tiny.directory, dtype=torch.float64, exactness="fast")
    prefill = tiny.prefill(decoder)
    assert isinstance(prefill.cache.store, TensorStore)
    ours = torch.cat([prefill.first_logits[None], in_blocks(decoder, prefill, tiny.decoded, 5)])

    torch.testing.assert_close(ours, tiny.expected, rtol=0, atol=1e-4)


def test_half_precision_is_as_near_to_float32_as_transformers(half: tuple[Tiny, Decoder]) -> None:
    """By the median, since a mixture's near tie between experts moves a few rows a long way in either."""
    tiny, decoder = half
    theirs = families.load_reference(tiny.case, tiny.directory, decoder.shape.dtype)
    prefill = tiny.prefill(decoder)
    ours = torch.cat([prefill.first_logits[None], in_blocks(decoder, prefill, tiny.decoded, 1)])
    error = (ours - tiny.expected).abs().median()
    theirs_error = (families.reference_logits(theirs, tiny.ids)[PROMPT - 1 :] - tiny.expected).abs().median()

    assert 0 < error < 1.5 * theirs_error


def test_rows_do_not_depend_on_the_width_of_a_block(tiny: Tiny, decoder: Decoder) -> None:
    check_widths(tiny, decoder, WIDTHS)


def test_rows_do_not_depend_on_the_width_of_a_block_in_half(half: tuple[Tiny, Decoder]) -> None:
    check_widths(*half, (2, 25))


def check_widths(tiny: Tiny, decoder: Decoder, widths: Sequence[int]) -> None:
    prefill = tiny.prefill(decoder)
    alone = in_blocks(decoder, prefill, tiny.decoded, 1)
    changed = [width for width in widths if not torch.equal(in_blocks(decoder, prefill, tiny.decoded, width), alone)]

    assert not changed


def test_a_prefill_in_chunks_and_16_bits_sees_no_later_token(tmp_path: Path) -> None:
    """Entries of the second layer are near those of float32, and the same whatever token comes after them."""
    tiny = make_tiny(CASES[0], tmp_path)
    last = 127
    other = [*tiny.ids[:last], (tiny.ids[last] + 1) % families.VOCABULARY]
    decoder = families.load(tiny.directory, dtype=torch.bfloat16)
    ours, changed = (decoder.prefill(ids, chunk=64).cache for ids in (tiny.ids[: last + 1], other))
    exact = families.load(tiny.directory).prefill(tiny.ids[: last + 1], chunk=last + 1).cache
    for half, same, wide in zip(
        *(cache.store.read_range(1, 0, last + 1) for cache in (ours, changed, exact)), strict=True
    ):
        error = (half.float() - wide).norm(dim=-1) / wide.norm(dim=-1)

        assert float(error.max()) < 0.05
        assert torch.equal(half[:, :last], same[:, :last])
        assert not torch.equal(half[:, last], same[:, last])


def test_rows_do_not_depend_on_other_requests(tiny: Tiny, decoder: Decoder) -> None:
    check_ragged(tiny, decoder)


def test_rows_do_not_depend_on_other_requests_in_half(half: tuple[Tiny, Decoder]) -> None:
    check_ragged(*half)


def check_ragged(tiny: Tiny, decoder: Decoder) -> None:
    """Prompts and blocks of unequal lengths, page and chunk boundaries among them, in one forward pass."""
    shapes = [(1, 3), (64, 1), (250, 25), (63, 8), (7, 1)]
    prefills = [decoder.prefill(tiny.ids[:prompt], chunk=64) for prompt, _ in shapes]
    blocks = [tiny.ids[prompt : prompt + width] for prompt, width in shapes]
    alone = [in_blocks(decoder, prefill, block, 1) for prefill, block in zip(prefills, blocks, strict=True)]
    together = decoder.forward([Block(prefill.cache, block) for prefill, block in zip(prefills, blocks, strict=True)])

    assert torch.equal(together, torch.cat(alone))


@pytest.fixture
def _threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    environment.set_threads(before)


@pytest.mark.usefixtures("_threads_restored")
def test_rows_do_not_depend_on_the_number_of_threads(tiny: Tiny, decoder: Decoder) -> None:
    prefill = tiny.prefill(decoder)
    environment.set_threads(1)
    one = in_blocks(decoder, prefill, tiny.decoded, 8)
    environment.set_threads(2)

    assert torch.equal(in_blocks(decoder, prefill, tiny.decoded, 8), one)
