"""A model without weights, for rounds in microseconds: its next token follows from the last one and its position.

The draft cache's answers can be distorted, row by row; caches hold token ids in place of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor

from tests.engine.decoding.setups import cell
from tests.engine.reference import shape_of
from vcbench.config.schema import Arm, DraftLength
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.session import StreamFactory, run_cell
from vcbench.engine.kv.cache import EntrySource, FullCache, KVCache
from vcbench.engine.model.decoder import Block, Decoder, Prefill
from vcbench.engine.model.row_operations import CpuRows
from vcbench.engine.types import Generation, Request

VOCABULARY = 97
SHAPE = shape_of()

Distort = Callable[[int, int, int], int | None]
"""(how many drafts the round has, position of the next token, what it should be) -> what it is; None is a NaN row."""


def faithful(drafted: int, position: int, token: int) -> int | None:
    """The true token: every draft is accepted."""
    return token


def accepting(count: int) -> Distort:
    """The true token for the first `count` drafts of a round, then a wrong one."""
    return lambda drafted, position, token: token if drafted < count else (token + 1) % VOCABULARY


def follow(ids: Sequence[int]) -> int:
    """The model: distinct tokens for as long as the tests run."""
    return (ids[-1] + 1 + len(ids) % 3) % VOCABULARY


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """What greedy decoding gives."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(follow(ids))
    return ids[len(prompt) :]


def logits_row(token: int | None, position: int) -> Tensor:
    """Logits that choose `token`; they differ from position to position."""
    if token is None:
        return torch.full((VOCABULARY,), float("nan"))
    row = torch.linspace(0, 1, VOCABULARY) * position / 64
    row[token] = 9
    return row


class _ScriptedCache(KVCache):
    """Ids of all tokens seen, the uncommitted last."""

    def __init__(self, ids: Sequence[int], distort: Distort = faithful) -> None:
        KVCache.__init__(self, SHAPE, len(ids))
        self.ids = list(ids)
        self.distort = distort
        self.longest = len(ids)

    def append(self, token: int) -> Tensor:
        """Takes in a token and answers with the logits after it."""
        drafted = len(self.ids) - self.committed
        self.ids.append(token)
        self.longest = max(self.longest, len(self.ids))
        return logits_row(self.distort(drafted, len(self.ids), follow(self.ids)), len(self.ids))

    def roll_back(self, keep: int = 0) -> None:
        super().roll_back(keep)
        del self.ids[self.tokens :]

    def refresh(self, count: int, source: EntrySource) -> None:
        held = cast("_ScriptedCache", source)
        new = held.ids[held.committed : held.committed + count]
        assert (held.committed, len(new)) == (self.committed, count)
        self.roll_back()
        self.ids += new
        self.tokens = len(self.ids)

    def uncommitted(self, layer: int, count: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        raise NotImplementedError

    def attend(self, layer: int, q: Tensor) -> Tensor:
        raise NotImplementedError

    def materialize(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError

    def nbytes(self) -> dict[str, int]:
        return {"kv": 0}


class ScriptedDraft(_ScriptedCache):
    """In place of a compressed cache."""


class ScriptedFull(_ScriptedCache, FullCache):
    """In place of the full cache."""

    def rewind(self, tokens: int) -> None:
        self.tokens = self.committed = tokens
        self.roll_back()

    def tiers(self) -> dict[str, int]:
        return {}

    def reread_bytes(self) -> int:
        return 0


class ScriptedDecoder:
    """In place of the decoder; `widths` counts the rows of every block that went through."""

    def __init__(self) -> None:
        self.rows = CpuRows()
        self.shape = SHAPE
        self.architecture = SimpleNamespace(vocab_size=VOCABULARY)
        self.watch = None
        self.widths: list[int] = []

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        rows = []
        for block in blocks:
            cache = cast(_ScriptedCache, block.cache)
            rows += [cache.append(token) for token in block.token_ids]
            cache.advance(len(block.token_ids))
            self.widths.append(len(block.token_ids))
        return torch.stack(rows)


class ScriptedCompressor:
    """Draft caches whose distortion is looked up by prompt."""

    def __init__(self, distort: Distort | dict[tuple[int, ...], Distort]) -> None:
        self.distort = distort
        self.made: list[ScriptedDraft] = []

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        ids = cast(ScriptedFull, prefill.cache).ids
        distort = self.distort[tuple(ids)] if isinstance(self.distort, dict) else self.distort
        self.made.append(ScriptedDraft(ids, distort))
        return self.made[-1]


def prefilled(request: Request, verifier: Distort = faithful) -> Prefilled:
    """A request as it stands after its prompt; `verifier` distorts the full cache."""
    ids = list(request.prompt_ids)
    first = logits_row(verifier(0, len(ids), follow(ids)), len(ids))
    return Prefilled(request, Prefill(cache=ScriptedFull(ids, verifier), first_logits=first))


def decode(
    batch: Sequence[Prefilled],
    arm: Arm = "full",
    draft_length: DraftLength = 0,
    distort: Distort | dict[tuple[int, ...], Distort] = faithful,
    stream: StreamFactory | None = None,
) -> list[Generation]:
    """The batch's generations in its own order."""
    compressor = None if arm == "full" else ScriptedCompressor(distort)
    setup = cell(arm, compressor, draft_length)
    ended: dict[str, Generation] = {}
    decoder = cast(Decoder, ScriptedDecoder())
    run_cell(decoder, setup, batch, on_end=lambda g: ended.__setitem__(g.request_id, g), stream=stream)
    return [ended[item.request.id] for item in batch]
